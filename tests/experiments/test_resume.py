"""`train --resume RUN` uses the run's own recipe and last checkpoint, for each kind of run."""

import json

import filelock
import pytest
import tensorflow as tf

from experiments import train as training
from experiments.commands import main
from experiments.versions import versions
from macaron_tf.distribution import Workers
from macaron_tf.training import build_fit_model
from tests.toys.marks import slow
from tests.toys.pretraining import flags
from tests.toys.runs import elmo, embeddings, text_to_text, translation
from tests.toys.tasks import toy_flags, validations

SHORT = ["schedule=constant", "warmup_steps=0", "validate_every=1", "save_every_steps=1"]
SHORT = flags([f"training.{one}" for one in [*SHORT, "log_every=1", "max_minutes=None"]])


# translate/test_commands.py resumes translations by the same command.
@pytest.mark.parametrize("make", [embeddings, *slow(translation, elmo, text_to_text)])
def test_a_run_goes_on_by_its_own_recipe(make, request, tmp_path, ran, refused):
    words = make(request.getfixturevalue)
    run = tmp_path / "run"
    own = [word.replace("RUN", str(run)) for word in words]
    ran(main, *own, *SHORT, "--set", "training.max_steps=1")
    before = json.loads((run / "recipe.json").read_text())
    model = json.loads((run / "model.json").read_text())
    assert model["versions"] == versions()
    model["versions"]["commit"] = "abc1234"  # another commit started the run
    (run / "model.json").write_text(json.dumps(model))
    ran(main, "train", "--resume", run, "--set", "training.max_steps=2")
    assert json.loads((run / "model.json").read_text()) == model
    assert [line["step"] for line in validations(run)] == [1, 2]
    before["training"]["max_steps"] = 2
    assert json.loads((run / "recipe.json").read_text()) == before
    resume = ["--resume", run]
    refused(main, ["train", *resume, "--set", "training.seed=7"], "training.seed=", run)
    refused(main, [*words[:2], *resume], "--resume cannot be combined with ", run)
    refused(main, ["train", "--resume", tmp_path / "none"], "is not a run", tmp_path)


def test_a_worker_lost_while_the_model_is_built_is_one_sentence(
    toy, tmp_path, refused, monkeypatch
):
    class OneOfTwo(Workers):
        def __init__(self, strategy):
            self.several, self.index = True, 0

    def broken_off(*_, **__):
        raise tf.errors.UnavailableError(None, None, "Collective ops is aborted")

    monkeypatch.setattr(training, "Workers", OneOfTwo)
    monkeypatch.setattr(training, "build_fit_model", broken_off)
    words = ["train", "sentence_bert:stsb", tmp_path / "run", *toy_flags(toy, "stsb")]
    refused(main, words, "worker 0 lost another worker", tmp_path)


def test_a_refused_second_command_leaves_the_first_ones_folder(toy, tmp_path, monkeypatch, capsys):
    run, held = tmp_path / "run", []

    def begun(*given, **options):  # another process starts while this one builds its model
        if not held:
            run.mkdir()
            held.append(filelock.FileLock(run / ".lock").acquire())
            (run / "recipe.json").write_text("{}")
        return build_fit_model(*given, **options)

    monkeypatch.setattr(training, "build_fit_model", begun)
    words = ["train", "sentence_bert:stsb", str(run), *map(str, toy_flags(toy, "stsb"))]
    assert main(words) == 2
    assert "another process is training in" in capsys.readouterr().err
    assert (run / "recipe.json").read_text() == "{}"
