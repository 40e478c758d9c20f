"""Tests of the scripts in `experiments.examples` at tiny size, and of their notebooks."""

import pathlib
import runpy
import sys

import pytest

from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from tests.export.serving_toys import export_toy
from tests.toys.pretraining import flags

EXAMPLES = pathlib.Path(__file__).parents[2] / "experiments" / "examples"


@pytest.fixture
def run(monkeypatch, capfd):
    """Returns `run(name, arguments)`, which runs an example and returns what it printed."""

    def run(name: str, arguments: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_module(f"experiments.examples.{name}", run_name="__main__")
        return capfd.readouterr().out

    return run


@pytest.fixture
def server(tmp_path):
    """Yields a server of the toy translator, which returns upper-case text."""
    export_toy(tmp_path / "toy", 1)
    config = ServerConfig(str(tmp_path / "toy"), "toy", port=0)
    with ModelServer(config) as server:
        yield server


@pytest.fixture
def tiny(request, tmp_path):
    """Returns `tiny(name)`, which returns the arguments that shrink an example."""

    def arguments(name: str) -> list[str]:
        if name == "ask_server":
            return ["toy", "a dog", "b", "--url", request.getfixturevalue("server").url]
        if name == "swish_classifier":
            data = request.getfixturevalue("tfds_dir")
            return [str(tmp_path / "out"), "--data-dir", data, "--train", "train[:300]"]
        (tmp_path / "novel.txt").write_text("the old man and the sea, and the old sea. " * 60)
        sizes = "training.max_steps=2 data.vocabulary.size=40 data.validation_every=5 "
        sizes += "model.hidden_dim=16 model.num_layers=1 data.sequence_length=16"
        return [f"text:{tmp_path}/novel.txt", "--seeds", "1", *flags(sizes.split())]

    return arguments


@pytest.mark.slow  # test_plug_ins.py trains user blocks by commands
def test_a_block_of_ones_own_is_judged(run, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = run("own_block", tiny("own_block"))
    assert "| own |" in lines and "- own: gpt_quick, model.block=my_block.py:Mine" in lines


def test_the_client_prints_answers_and_the_server_s_errors(run, tiny):
    lines = run("ask_server", tiny("ask_server"))
    asked, answers = zip(*(line.split(" -> ") for line in lines.splitlines()), strict=True)
    assert asked == ("a dog", "b") and "v1:A DOG" in answers[0] and "v1:B" in answers[1]
    with pytest.raises(SystemExit, match="status 404: there is no path /v1/models/other:predict"):
        run("ask_server", ["other", *tiny("ask_server")[1:]])


@pytest.mark.slow
def test_the_classifier_answers_alike_saved_and_exported(run, tiny):
    lines = run("swish_classifier", tiny("swish_classifier"))
    saved, exported = lines.splitlines()[-2:]
    assert saved == exported and len(saved.split()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("[a-z]*.py")))
def test_a_notebook_made_of_an_example_runs(name, tiny, tmp_path, monkeypatch):
    """A notebook made from an example runs, in the Jupyter kernel of `make test-notebooks`."""
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = jupytext.read(EXAMPLES / f"{name}.py")
    assert notebook.cells[0].cell_type == "markdown" and '"""' not in notebook.cells[0].source
    [given] = [cell for cell in notebook.cells if "sys.argv[1:] =" in cell.source]
    assert "\nsys.argv[1:] =" in f"\n{given.source}"  # code, not a comment
    given.source = f"import sys\nsys.argv[1:] = {tiny(name)!r}"
    for cell in notebook.cells:
        cell.source = cell.source.replace('"macaron_tf[studies] @ git+ADDRESS"', "--help")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parents[1]))
    (tmp_path / "work").mkdir()
    where = {"metadata": {"path": str(tmp_path / "work")}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
