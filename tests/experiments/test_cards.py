"""The model cards of runs: their header, their settings, and lines of code that run."""

import pathlib
import re

import pytest
import yaml

import macaron_tf

RUNS = {
    "number_run": "translation",
    "toy_run": "text-classification",
    "language_run": "text-generation",
    "t5_run": "text2text-generation",
}


def run_snippet(folder: pathlib.Path, monkeypatch) -> dict:
    """Runs the Python lines of a card in the folder above, and returns their names."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)[1]
    monkeypatch.chdir(folder.parent)
    names = {}
    exec(code, names)
    return names


@pytest.mark.parametrize(("run", "pipeline"), RUNS.items())
def test_a_card_s_lines_run_and_its_header_is_the_hub_s(
    run, pipeline, request, tmp_path, monkeypatch
):
    model = macaron_tf.load(request.getfixturevalue(run))
    model.save_pretrained(tmp_path / "mine", license="mit")
    card = (tmp_path / "mine/README.md").read_text()
    print(card)
    header = yaml.safe_load(card.split("---")[1])
    assert (header["pipeline_tag"], header["license"]) == (pipeline, "mit")
    names = run_snippet(tmp_path / "mine", monkeypatch)
    assert "predict" in card and names["model"].name == "mine"
