"""Without consent, no command or loader runs code that is named in a stranger's file."""

import concurrent.futures
import functools
import json
import os
import pathlib
import shutil
import sys

import h5py
import keras
import numpy as np
import pytest

import macaron_tf
from experiments.commands import main
from experiments.few_shot.commands import main as few_shot
from experiments.lab.ode import main as ode
from experiments.look import main as look
from export.saved_model import main as export
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.errors import UserError
from macaron_tf.hub.family import build_model
from macaron_tf.io import paths as storage
from macaron_tf.io.plug_ins import find
from macaron_tf.layers.block import Block
from macaron_tf.model import Model
from macaron_tf.models import Encoder
from macaron_tf.models.catalog import build
from macaron_tf.training import checkpoints
from tests.harness import refuses
from tests.toys.pretraining import flags

EVIL = """
import os, pathlib
from macaron_tf.layers.blocks import TransformerBlock as Ours
with open(os.environ["RAN"], "a") as file:
    file.write(__name__ + "\\n")
class TransformerBlock(Ours):
    pass
def rows(split):
    return [("a", "b")] * 40
"""
NAME = "TransformerBlock"
BLOCKS = (f"bad/evil.py:{NAME}", f"bad.evil:{NAME}", "this:X", f"~/evil.py:{NAME}")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Yields a working directory with a stranger's code, which writes a file if it runs."""
    (tmp_path / "bad").mkdir()
    for place in ("bad/evil.py", "evil.py"):
        (tmp_path / place).write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name in ("evil", "bad", "bad.evil")]:
        del sys.modules[name]


def ran_times(here: pathlib.Path) -> int:
    file = here / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


def with_block(value, block: str):
    """Returns a copy of a JSON value in which each field "block" is replaced by `block`."""
    if isinstance(value, dict):
        changed = {key: with_block(item, block) for key, item in value.items()}
        return changed | ({"block": block} if "block" in value else {})
    return [with_block(item, block) for item in value] if isinstance(value, list) else value


def stranger(run, here: pathlib.Path, block: str = "", **settings) -> str:
    """Forges a copy of a run as an attacker could; returns the path of the copy.

    The block and the recipe settings are replaced.
    """
    copy = here / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    model, recipe = (json.loads((copy / f"{n}.json").read_text()) for n in ("model", "recipe"))
    if block:
        model, options = with_block(model, block), dict(recipe["model_options"])
        recipe["model_options"] = sorted([*(options | {"block": block}).items()])
    for name, value in settings.items():
        section, _, field = name.rpartition("__")
        (recipe[section] if section else recipe)[field] = value
    (copy / "model.json").write_text(json.dumps(model))
    (copy / "recipe.json").write_text(json.dumps(recipe))
    return str(copy)


RUNS = ("number_run", "toy_run", "language_run", "t5_run")
SOURCE = ("--set", "data.source=tsv:x.tsv")
COMMANDS = [
    *((main, run, ["predict", "RUN", "a"]) for run in RUNS),
    *((main, run, ["train", "--resume", "RUN"]) for run in RUNS),
    (main, "number_run", ["evaluate", "RUN", "--split", "validation"]),
    (main, "number_run", ["train", "demo", "new", "--init", "RUN"]),
    (main, "toy_run", ["evaluate", "RUN", "--split", "validation"]),
    (main, "toy_run", ["train", "finetune:sst2", "new", "--init", "RUN", *SOURCE]),
    (main, "toy_run", ["train", "sentence_bert:stsb", "new", "--init", "RUN", *SOURCE]),
    (main, "language_run", ["score", "RUN", "lines.txt"]),
    (few_shot, "language_run", ["RUN", "--task", "rte", "--out", "out"]),
    (main, "language_run", ["evaluate", "RUN", "--corpus", "CORPUS"]),
    (main, "language_run", ["train", "gpt2_tiny", "new", "--init", "RUN"]),
    (look, "language_run", ["RUN", "a a"]),
    (ode, "language_run", ["--runs", "RUN", "--results", "out"]),
    (main, "t5_run", ["train", "text_to_text:sst2", "new", "--init", "RUN"]),
    *((export, run, ["RUN", "out"]) for run in RUNS),
]


@pytest.mark.parametrize(("command", "run", "words"), COMMANDS)
def test_no_command_runs_code_that_a_folder_names(command, run, words, here, request, capsys):
    (here / "lines.txt").write_text("one two three\n" * 30)
    before = sorted(sys.modules.keys() & {"this", "evil", "bad.evil"})
    for block in BLOCKS:
        source = request.getfixturevalue(run)
        capsys.readouterr()
        place, corpus = stranger(source, here, block), f"{source}/../corpus"
        status = command([w.replace("RUN", place).replace("CORPUS", corpus) for w in words])
        error = capsys.readouterr().err
        assert (status, error.count("\n")) == (2, 1), error
        assert block in error and "--trust-code" in error, error
    assert not ran_times(here)
    assert before == sorted(sys.modules.keys() & {"this", "evil", "bad.evil"})


@pytest.mark.parametrize("module", ["bad/evil.py", "bad.evil", "~/evil.py"])
def test_no_source_or_objective_of_a_folder_runs(module, here, number_run, language_run, capsys):
    place = stranger(number_run, here, data__source=f"python:{module}:rows")
    for words in (["evaluate", place, "--split", "validation"], ["train", "--resume", place]):
        assert main([*words, *flags(["training.max_steps=90"] * ("train" in words))]) == 2
        assert f"{module}:rows" in capsys.readouterr().err
    place = stranger(language_run, here, objective=f"{module}:TransformerBlock")
    corpus = f"{language_run}/../corpus"
    for words in (["evaluate", place, "--corpus", corpus], ["train", "--resume", place]):
        assert main(words) == 2
        assert f"{module}:TransformerBlock" in capsys.readouterr().err
    optimizer = f"{module}:TransformerBlock(rate=1)"
    place = stranger(language_run, here, training__optimizer=optimizer)
    assert main(["evaluate", place, "--corpus", corpus]) == 2
    assert f"{module}:TransformerBlock" in capsys.readouterr().err
    assert not ran_times(here)


def test_trusted_code_is_named_and_runs_once(here, toy_run, capsys):
    place = stranger(toy_run, here, "bad.evil:TransformerBlock")
    assert main(["evaluate", place, "--trust-code", "--split", "validation"]) == 0
    named = capsys.readouterr().err.count(f"importing your code: bad.evil, {here}/bad/evil.py")
    assert (named, ran_times(here)) == (1, 1)
    model = macaron_tf.load(place, trust_code=True)
    assert type(model.network.encoder.stack.blocks[0]).__module__ == "bad.evil"
    assert ran_times(here) == 1


def test_keras_files_are_opened_in_safe_mode(here):
    network = build("bert_tiny", vocab_size=20, block="bad.evil:TransformerBlock", num_layers=1)
    network.save("a.keras")
    copy = keras.models.clone_model(network)  # after an import, no question is asked
    assert type(copy.stack.blocks[0]).__module__ == "bad.evil"
    assert ran_times(here) == 1
    del sys.modules["bad.evil"]
    for open_file in (
        lambda: keras.saving.load_model("a.keras"),
        lambda: keras.saving.load_model("a.keras", safe_mode=True),
    ):
        refuses(r"code of the module bad\.evil.*--trust-code", open_file)
    assert ran_times(here) == 1
    assert keras.saving.load_model("a.keras", safe_mode=False).count_params() > 0
    assert ran_times(here) == 2


OWN = """
import macaron_tf
from macaron_tf.layers import TransformerBlock

class Block(TransformerBlock):
    pass

try:
    macaron_tf.load("theirs")
except macaron_tf.errors.UserError as error:
    refusal = str(error)
"""
REFUSED = "'evil:TransformerBlock' was read from a file"


@pytest.fixture
def folders(here):
    """Yields a directory with the saved models `own`, of own.py, and `theirs`, of evil.py."""
    (here / "own.py").write_text(OWN)
    network = build("bert_tiny", vocab_size=20, block="own:Block", num_layers=1)
    for name in ("own", "theirs"):
        Model(network).save_pretrained(name)
    record = json.loads(pathlib.Path("theirs/model.json").read_text())
    forged = with_block(record, "evil:TransformerBlock")
    pathlib.Path("theirs/model.json").write_text(json.dumps(forged))
    del sys.modules["own"]
    yield here
    sys.modules.pop("own", None)


def test_a_file_is_executed_once_by_many_threads(here):
    text = EVIL.replace("class Tr", "import time\ntime.sleep(0.2)\nclass Tr")
    (here / "bad/evil.py").write_text(text)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = [f"bad/evil.py:{NAME}", f"./bad/../bad/evil.py:{NAME}"] * 4
        loaded = {*pool.map(lambda name: find(name, Block, trust_code=True), names)}
    assert len(loaded) == ran_times(here) == 1


def test_trusted_code_that_loads_a_stranger_s_folder_does_not_trust_it(folders):
    macaron_tf.load("own", trust_code=True)  # own.py loads the other folder
    assert REFUSED in sys.modules["own"].refusal and not ran_times(folders)


def test_a_configuration_of_another_library_names_no_code(folders):
    settings = {"vocab_size": 20, "max_length": 8, "hidden_dim": 8, "feed_forward_dim": 8}
    settings |= {"num_heads": 2, "num_layers": 1, "block": "evil:TransformerBlock"}
    refuses(REFUSED, build_model, Encoder, settings)
    several = ["transformer", settings["block"]]
    refuses(REFUSED, build_model, Encoder, {**settings, "block": several})
    assert not ran_times(folders)


def test_a_function_of_an_imported_module_is_not_called(here):
    """Only functions that the user named are called, although `shutil` is imported."""
    (here / "train").mkdir()
    for source in ("python:shutil:rmtree", "python:json:loads"):
        refuses("was read from a file", read_pairs, source, "train", "en", "de")
    find("shutil:copy", trust_code=True)
    with pytest.raises(UserError, match="'shutil:rmtree' was read from a file"):
        read_pairs("python:shutil:rmtree", "train", "en", "de")
    assert (here / "train").is_dir()


def test_a_run_is_opened_by_who_names_its_code_again(here, toy_run, toy, ran):
    tune = [
        "data.max_length=16",
        "data.batch_size=16",
        "training.max_steps=2",
        "training.validate_every=2",
    ]
    tune += ["model=bert_tiny", "model.block=bad.evil:TransformerBlock"]
    tune.append(f"data.source=tsv:{toy}/{{split}}.tsv")
    train = ["train", "finetune:sst2", "mine", "--vocabulary", toy_run / "vocabulary", *flags(tune)]
    ran(main, *train)
    macaron_tf.load("mine").save_pretrained("saved")
    for opens in (
        lambda: ran(main, *train),  # the same command goes on with the run
        lambda: ran(main, "train", "--resume", "mine", "--trust-code"),
        lambda: macaron_tf.load("saved", trust_code=True),
    ):
        del sys.modules["bad.evil"]
        refuses("'bad.evil:TransformerBlock' was read from a file", macaron_tf.load, "saved")
        opens()


def test_a_tfds_folder_names_no_code(here, tfds_dir):
    shutil.copytree(f"{tfds_dir}/glue/rte", "sets/glue/rte")
    [file] = pathlib.Path("sets/glue/rte").glob("*/features.json")
    for field in ("pythonClassName", "type"):
        file.write_text(json.dumps({field: "bad.evil.TransformerBlock", "content": {}}))
        with pytest.raises(UserError, match=r"'bad\.evil:TransformerBlock' was read from a file"):
            open_set("glue/rte", "train", Tfds("sets"))
        deep = f'{{"junk": {"[" * 5000}{"]" * 5000}, "type": "bad.evil.TransformerBlock"}}'
        file.write_text(deep)
        refuses("features.json is damaged", open_set, "glue/rte", "train", Tfds("sets"))
    assert not ran_times(here)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("/dev/zero", "'/dev/zero', which lies outside"),
        ("../run/model.json", "outside of its folder"),
        ("vocabulary", "is no(t a)? regular file"),
        ("zero", "zero is no(t a)? regular file"),
        ("pipe", "pipe is no(t a)? regular file"),
    ],
)
def test_a_manifest_names_regular_files_of_its_folder(entry, message, here, toy_run):
    macaron_tf.load(toy_run).save_pretrained("run")
    os.symlink("/dev/zero", "run/zero")
    os.mkfifo("run/pipe")
    file = pathlib.Path("run/manifest.json")
    manifest = json.loads(file.read_text())
    manifest["files"][entry] = {"sha256": "0" * 64, "bytes": 1}
    manifest["sha256"] = checkpoints._manifest_digest(manifest)
    file.write_text(json.dumps(manifest))
    refuses(message, macaron_tf.load, "run")


@pytest.mark.parametrize("name", ["model.json", "vocabulary/vocabulary.json", "ema.weights.h5"])
def test_a_pipe_among_the_files_of_a_folder_is_not_waited_for(name, here, toy_run):
    macaron_tf.load(toy_run).save_pretrained("run")
    pathlib.Path("run", name).unlink(missing_ok=True)
    os.mkfifo(f"run/{name}")
    refuses("regular file|no readable model.json", macaron_tf.load, "run")
    refuses("regular file", storage.read_bytes, f"run/{name}")


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", {"kind": "none"}), ("task", []), ("card", []), ("card", {"results": []})],
)
def test_a_forged_description_is_one_sentence(field, value, here, toy_run):
    macaron_tf.load(toy_run).save_pretrained("run")
    record = json.loads(pathlib.Path("run/model.json").read_text())
    pathlib.Path("run/model.json").write_text(json.dumps({**record, field: value}))
    manifest = json.loads(pathlib.Path("run/manifest.json").read_text())
    pathlib.Path("run/manifest.json").unlink()
    copy = functools.partial(shutil.copytree, "run", dirs_exist_ok=True)
    checkpoints.save_whole(here / "forged", copy, manifest)
    refuses("forged/model.json", macaron_tf.load, "forged")


@pytest.mark.parametrize("kind", ["raw", "link", "virtual"])
def test_an_average_is_written_into_no_other_file(kind, here):
    raw = np.zeros(4, np.float32)
    raw.tofile("victim")
    with h5py.File("victim.h5", "w") as file:
        file["w"] = raw
    before = [(here / name).read_bytes() for name in ("victim", "victim.h5")]

    def write(folder, kind: str) -> None:
        layout = h5py.VirtualLayout((4,), "f4")
        layout[:] = h5py.VirtualSource(str(here / "victim.h5"), "w", (4,))
        with h5py.File(folder / "model.weights.h5", "w") as file:
            match kind:
                case "raw":
                    file.create_dataset("w", (4,), "f4", external=[(str(here / "victim"), 0, 16)])
                case "link":
                    file["w"] = h5py.ExternalLink(str(here / "victim.h5"), "w")
                case "virtual":
                    file.create_virtual_dataset("w", layout)
                case "own":
                    file["w"] = np.ones(4, np.float32)

    manifest = {"step": 1, "vocabulary": "", "weights": []}
    for name, content in (("one", "own"), ("two", kind)):
        checkpoints.save_whole(here / name, functools.partial(write, kind=content), manifest)
    with pytest.raises(UserError, match="two/model.weights.h5 keeps w in another file"):
        checkpoints.average_checkpoints([here / "one", here / "two"], here / "average")
    assert before == [(here / name).read_bytes() for name in ("victim", "victim.h5")]
    assert not (here / "average").exists()
