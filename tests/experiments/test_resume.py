"""`train --resume RUN` uses the run's own recipe and last checkpoint, for each kind of run."""

import json
import signal
import time

import filelock
import numpy as np
import pytest
import tensorflow as tf

from experiments.commands import main
from macaron_tf.distribution import Workers
from macaron_tf.model import load
from macaron_tf.runs import trainer as training
from macaron_tf.runs.versions import versions
from macaron_tf.training import build_fit_model
from macaron_tf.training.progress import read_lines
from macaron_tf.variables import spec_of
from tests.harness import numpy_of
from tests.toys.marks import slow
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.processes import assert_same_run, cluster, finished, started
from tests.toys.runs import check_resumed, words_of
from tests.toys.tasks import recipe_of, toy_flags, validations

KINDS = ["multi30k_macaron_tiny", "elmo_tiny", "text_to_text:sst2", "t5_tiny", "tcn_jsb"]
KINDS += ["bert_tiny", "gpt2_tiny", "electra_tiny", "xlnet_tiny", "xlm_tiny"]


@pytest.mark.parametrize("name", ["sentence_bert:stsb", "finetune:sst2", *slow(*KINDS)])
def test_a_run_goes_on_by_its_own_recipe(name, value, tmp_path, ran, refused):
    words = [*words_of(name, value), "--set", "model.dropout=0.1"]
    run = check_resumed(words, tmp_path)
    before, model, data = (
        json.loads((run / f"{name}.json").read_text()) for name in ("recipe", "model", "data")
    )
    assert model["versions"] == versions()
    model["versions"]["commit"] = "abc1234"  # another commit started the run
    (run / "model.json").write_text(json.dumps(model))
    resume = ["train", "--resume", run]
    ran(main, *resume, "--set", "training.max_steps=4")
    assert json.loads((run / "model.json").read_text()) == model
    assert [line["step"] for line in validations(run)] == [1, 2, 3, 4]
    before["training"]["max_steps"] = 4
    assert json.loads((run / "recipe.json").read_text()) == before
    for setting in ("training.seed=7", "model.dropout=0.7"):
        refused(main, [*resume, "--set", setting], f"{run} was trained with ", run)
    refused(main, [*words[:2], *resume[1:]], "--resume cannot be combined with ", run)
    refused(main, ["train", "--resume", tmp_path / "none"], "is not a run", tmp_path)
    (run / "data.json").write_text(json.dumps({**data, "sha256": "another"}))
    refused(main, resume, "the training data differ from", run)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "number"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_two_workers_end_together_and_go_on_to_the_bit(victim, number, source, tmp_path):
    settings = [*toy_settings(source, 60), "model.dropout=0.1", "training.log_every=1"]
    settings.append("training.keep_last=1")  # a signal saves one checkpoint more
    corpus = prepare("bert_tiny", str(tmp_path / "corpus"), settings)
    words = ["--corpus", corpus, "--strategy", "multi_worker", *flags(settings)]

    def workers(run):
        command = ["-m", "macaron_tf", "train", "bert_tiny", str(run), *words]
        return [started(command, TF_CONFIG=config) for config in cluster(2)]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    both, until = workers(killed), time.monotonic() + 300
    while len(read_lines(killed / "metrics.jsonl")) < 30:  # after the first checkpoint
        assert time.monotonic() < until and both[0].poll() is None, both[0].communicate()[0]
        time.sleep(0.01)
    both[victim].send_signal(number)
    said = [process.communicate(timeout=300)[0] for process in both]
    statuses = [process.returncode for process in both]
    if number == signal.SIGTERM:  # a worker that is told to stop stops all
        assert statuses == [143, 143] and all("is saved in" in output for output in said), said
    else:
        assert statuses[0] == -9 and statuses[1] and "lost another worker" in said[1], said
    for run in (killed, whole):
        for process in workers(run):
            finished(process)
    assert_same_run(killed, whole)


@pytest.mark.parametrize("task", ["sst2", *slow("stsb")])
def test_low_rank_updates_go_on_to_the_bit_and_leave_the_other_matrices(task, toy, tmp_path):
    settings = dict(training__lora_rank=2, model__dropout=0.1, training__keep_last=3)
    words = ["train", recipe_of(task), "RUN", *toy_flags(toy, task, **settings)]
    run = check_resumed(words, tmp_path)
    before, after = (load(f"{run}@{step}").network.encoder.weights for step in (1, 3))
    for old, new in zip(before, after, strict=True):
        if len(new.shape) > 1:
            is_same = np.array_equal(numpy_of(old), numpy_of(new))
            assert is_same == (spec_of(new).axes[1:] != ("heads",)), new.path
    other = [word.replace("RUN", str(tmp_path / "gmlp")) for word in words]
    assert main([*other, "--set", "model.block=gmlp"]) == 2  # has no attention


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
