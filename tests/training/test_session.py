"""Tests of runs that stop, resume, or have damaged checkpoints, on disk and in a bucket."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training import Diverged, Interrupted, build_fit_model, train
from macaron_tf.training.checkpoints import (
    CheckpointDirectory,
    _write_files,
    average_checkpoints,
    find_damage,
    last_checkpoints,
    weights_file,
)
from macaron_tf.training.progress import RunLog, read_lines
from macaron_tf.training.state import load_network, write_checkpoint
from tests.harness import file_limit, refuses
from tests.toys import training as toys
from tests.toys.marks import slow, thorough

HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("uninterrupted")
    result, model = toys.run(run_dir)
    return run_dir, result, model


def assert_same_run(run_dir, model, uninterrupted):
    expected_dir, _, expected = uninterrupted
    toys.assert_same(model.network.variables, expected.network.variables)  # includes the weights
    toys.assert_same(model.optimizer.variables, expected.optimizer.variables)
    toys.assert_same(model.ema.shadows, expected.ema.shadows)
    name = "metrics.jsonl"
    assert (run_dir / name).read_bytes() == (expected_dir / name).read_bytes()
    assert CheckpointDirectory(run_dir).best() == CheckpointDirectory(expected_dir).best()


def test_a_whole_run(uninterrupted):
    run_dir, result, model = uninterrupted
    assert (result.step, result.reason) == (20, "max_steps")
    assert model._update.experimental_get_tracing_count() == 1
    assert model._test.experimental_get_tracing_count() == 1
    assert CheckpointDirectory(run_dir).latest().name == "step-00000020"
    lines = read_lines(run_dir / "metrics.jsonl")
    expected = {"train": [3, 6, 9, 12, 15, 18, 20], "validation": [8, 16, 20]}
    for kind, steps in expected.items():
        assert [line["step"] for line in lines if line["kind"] == kind] == steps
        assert list((run_dir / "tensorboard" / kind).glob("events*"))
    named = {"loss", "perplexity", "accuracy", "learning_rate", "gradient_norm", "tokens"}
    assert named <= set(lines[0])
    timing = read_lines(run_dir / "timing.jsonl")
    assert all(line["tokens_per_second"] > 0 for line in timing)
    if sys.platform == "linux":
        # A process with TensorFlow, and less than this machine's memory.
        assert all(100 < line["memory_mib"] < 10**6 for line in timing)


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ("kill", 13),
        *thorough((signal.SIGTERM, 7)),
        *slow(("kill", 16), (signal.SIGINT, 16), ("validation", 16)),
    ],
)
def test_a_stopped_run_goes_on_to_the_bit(tmp_path, uninterrupted, capsys, how, step):
    """A run that is killed after a step, or stopped by a signal, resumes bit-identically."""
    number = how if isinstance(how, int) else signal.SIGTERM

    def interrupted_judge(model, at):
        if at == step:
            os.kill(os.getpid(), number)
        return toys.judge(model, at)

    stop = toys.killed if how == "kill" else lambda: os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt if how == "kill" else Interrupted) as error:
        if how == "validation":
            toys.run(tmp_path, validate=interrupted_judge)
        toys.run(tmp_path, callbacks=[toys.StopAt(step, stop)])
    if how != "kill":
        assert error.value.code == 128 + number
        message = capsys.readouterr().err
        assert f"step {step} is saved" in message and "same command" in message
        assert CheckpointDirectory(tmp_path).steps()[-1] == step
    _, model = toys.run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


@pytest.mark.parametrize("error", [TypeError, KeyboardInterrupt, None])
def test_a_signal_that_a_library_catches_stops_the_run(tmp_path, uninterrupted, error):
    """A library may catch the exception of a signal, and then raise another one or none.

    A Ctrl-C that is repeated then ends the process at once.
    """

    def swallowing(model, at):
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        if error:
            raise error("no tensor")
        return toys.judge(model, at)

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else Interrupted):
        toys.run(tmp_path, validate=swallowing)
    assert all(line["kind"] == "train" for line in read_lines(tmp_path / "metrics.jsonl"))
    _, model = toys.run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def signalled_save(patch, clock, *numbers) -> None:
    """Raises signals in each save of a checkpoint; `clock` tells the time of each signal."""

    def signalled(*given, **options):
        for number in numbers:
            signal.raise_signal(number)
        return write_checkpoint(*given, **options)

    patch.setattr("macaron_tf.io.signals.time", types.SimpleNamespace(monotonic=clock))
    patch.setattr("macaron_tf.training.session.write_checkpoint", signalled)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more", [[signal.SIGINT], *slow([signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM])]
)
def test_signals_during_the_save_that_the_first_began(more, tmp_path, monkeypatch, uninterrupted):
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)  # not SIG_DFL, which kills
    try:
        with monkeypatch.context() as patch, pytest.raises(Interrupted) as error:
            signalled_save(patch, lambda: 3.0, *more)
            toys.run(
                tmp_path, callbacks=[toys.StopAt(3, lambda: signal.raise_signal(signal.SIGINT))]
            )
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert error.value.code == 130
    assert find_damage(CheckpointDirectory(tmp_path).of_step(3)) is None
    _, model = toys.run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_signal_repeated_after_a_second_acts_at_once(tmp_path, monkeypatch):
    """A run that hangs in its save can be ended by a second Ctrl-C."""
    signalled_save(monkeypatch, iter([3.0, 4.0]).__next__, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        toys.run(tmp_path, callbacks=[toys.StopAt(3, lambda: signal.raise_signal(signal.SIGINT))])
    assert CheckpointDirectory(tmp_path).steps() == []


def test_a_finished_run_is_left_alone(uninterrupted):
    run_dir, _, model = uninterrupted
    before = (run_dir / "metrics.jsonl").read_bytes()
    again, same = toys.run(run_dir)
    assert (again.step, again.reason) == (20, "max_steps")
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    toys.assert_same(same.network.weights, model.network.weights)


@pytest.mark.parametrize("average", [True, False])
def test_evaluation_takes_the_moving_average(uninterrupted, average):
    run_dir, _, model = uninterrupted
    network, newest = toys.toy_network(), CheckpointDirectory(run_dir).latest()
    assert load_network(newest, network, "", average)["step"] == 20
    toys.assert_same(network.weights, model.ema.shadows if average else model.network.weights)


SHORT = {"max_steps": 2, "accumulation_steps": 1, "ema_decay": None, "validate_every": 2}
SHORT = dataclasses.replace(toys.CONFIG, **SHORT)


@pytest.mark.slow
def test_refuses_what_does_not_belong_together(tmp_path):
    one, first = tmp_path / "one", {"vocabulary_hash": "first"}
    toys.run(one, SHORT, **first)
    refuses("vocabulary mismatch", toys.run, one, SHORT, vocabulary_hash="second")
    refuses("build the model with the settings", toys.run, one, SHORT, **first, width=12)
    refuses("ema_decay", toys.run, one, dataclasses.replace(SHORT, ema_decay=0.9), **first)
    toys.run(tmp_path / "two", SHORT, vocabulary_hash="second")
    toys.run(tmp_path / "three", SHORT, **first, width=12)
    one, *others = (
        CheckpointDirectory(tmp_path / name).of_step(2) for name in ("one", "two", "three")
    )
    for other in others:
        refuses("average checkpoints", average_checkpoints, [one, other], tmp_path / "averaged")
    assert not (tmp_path / "averaged").exists()
    assert weights_file(one).name == "model.weights.h5"


def test_early_stopping_and_the_best_checkpoint(tmp_path):
    scores = {2: 1.0, 4: 3.0, 6: 2.0, 8: float("nan"), 10: 9.0}
    judged = {"best_metric": "bleu", "best_mode": "max", "early_stopping_patience": 2}
    config = dataclasses.replace(SHORT, max_steps=100, save_every_steps=2, keep_last=1, **judged)
    result, _ = toys.run(tmp_path, config, validate=lambda model, step: {"bleu": scores[step]})
    assert (result.step, result.reason) == (8, "early_stopping")
    assert (result.best_step, result.best_score) == (4, 3.0)
    assert CheckpointDirectory(tmp_path).steps() == [4, 8]
    again, _ = toys.run(tmp_path, config, validate=lambda model, step: {"bleu": scores[step]})
    assert (again.step, again.reason) == (8, "early_stopping")


# The best metric, the metrics at steps 2, 4 and 6, and the best step.
VALIDATIONS = [
    ("loss", {"loss": (3.0, 2.0, 2.5)}, 4),  # falls
    ("perplexity", {"perplexity": (7.0, 5.0, 3.0)}, 6),
    ("bleu", {"bleu": (2.0, 4.0, 6.0), "loss": (2.0, 4.0, 6.0)}, 6),  # rises
    # Ties go to the lower loss, and then to the later step. A NaN is never best.
    ("accuracy", {"accuracy": (0.5, 0.5, 0.5), "loss": (0.7, 0.6, 0.65)}, 4),
    ("accuracy", {"accuracy": (0.5, 0.5, 0.5), "loss": (0.7, 0.7, 0.7)}, 6),
    ("f1", {"f1": (0.0, 0.0, 0.0)}, 6),
    ("accuracy", {"accuracy": (0.5, 0.5, 0.5), "loss": (0.7, np.nan, np.inf)}, 2),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("metric", "metrics", "best"), VALIDATIONS)
@pytest.mark.parametrize("is_resumed", [False, *slow(True)])
def test_the_best_checkpoint_by_the_direction_of_its_metric(
    metric, metrics, best, is_resumed, tmp_path
):
    def validate(model, step):
        return {name: values[step // 2 - 1] for name, values in metrics.items()}

    config = dataclasses.replace(SHORT, best_metric=metric)
    for max_steps in (4, 6) if is_resumed else (6,):
        part = dataclasses.replace(config, max_steps=max_steps)
        result, _ = toys.run(tmp_path, part, validate)
    assert result.best_step == best
    record = CheckpointDirectory(tmp_path).best()
    assert record == {"step": best, "metric": metric, "score": validate(None, best)[metric]}


def test_an_equal_score_does_not_put_off_early_stopping(tmp_path):
    judged = {"best_metric": "accuracy", "early_stopping_patience": 2, "max_steps": 100}
    config = dataclasses.replace(SHORT, **judged)
    result, _ = toys.run(tmp_path, config, lambda model, step: {"accuracy": 0.5, "loss": 1 / step})
    assert (result.step, result.best_step) == (6, 6)


@pytest.mark.parametrize("limit", thorough(1, 3, 10, but=(1, 10)))
@pytest.mark.parametrize("per_call", thorough(1, 1000, but=(1000,)))
def test_a_run_ends_at_its_last_skipped_update(limit, per_call, tmp_path):
    """The number of updates between two log lines is irrelevant."""

    objective = toys.scaled(lambda batch: tf.reduce_max(batch["number"]))
    dataset = toys.numbered(lambda i: tf.where((i == 2) | (i >= 5), np.nan, 1.0))
    options = dict(max_skipped_updates=limit, steps_per_call=per_call, log_every=50)
    config = dataclasses.replace(SHORT, max_steps=100, validate_every=28, **options)
    keras.utils.set_random_seed(0)
    model = build_fit_model(toys.toy_network(), objective, config)
    last = 3 if limit == 1 else 5 + limit
    said = f"^{limit} updates in a row up to step {last} had a NaN.*learning_rate"
    with pytest.raises(Diverged, match=said):
        train(model, dataset, tmp_path, validate=None)
    assert model.step == last


def test_bad_input_is_one_clear_sentence(tmp_path):
    keras.utils.set_random_seed(0)
    model = build_fit_model(toys.toy_network(), toys.toy_objective, SHORT)
    refuses(
        "ended after step 1", train, model, lambda start: toys.toy_dataset(start, 1), tmp_path / "a"
    )
    unknown = dataclasses.replace(SHORT, best_metric="bleu")
    refuses("best_metric='bleu'", toys.run, tmp_path / "b", unknown)
    patient = dataclasses.replace(SHORT, early_stopping_patience=1)
    refuses("early_stopping_patience", toys.run, tmp_path / "c", patient, validate=None)
    (tmp_path / "file").write_text("")
    refuses("choose another path", toys.run, tmp_path / "file" / "d", SHORT)


def test_one_writer_at_a_time(tmp_path):
    def start_another(model, step):
        refuses("another process is training", toys.run, tmp_path, SHORT)
        return toys.judge(model, step)

    toys.run(tmp_path, SHORT, validate=start_another)


def test_handlers_are_put_back(uninterrupted):
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


@pytest.mark.parametrize("per_call", [4, *thorough(1000)])
def test_several_updates_a_call_change_nothing(uninterrupted, tmp_path, per_call):
    result, model = toys.run(tmp_path, dataclasses.replace(toys.CONFIG, steps_per_call=per_call))
    assert result.step == toys.CONFIG.max_steps
    assert_same_run(tmp_path, model, uninterrupted)
    # A later `fit` accepts finite data.
    model.fit(toys.toy_dataset(0, 4), verbose=0)
    assert model.step == toys.CONFIG.max_steps + 2


def with_host(value):
    """Returns a function that replaces the array `host` of a .npz file."""
    return lambda file: np.savez(file, **{**np.load(file), "host": value})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("training_state.npz", with_host(np.array([{}], object))),
        ("training_state.npz", with_host(np.frombuffer(b'{"step": "2"}', np.uint8))),
        ("training_state.npz", lambda file: file.write_bytes(file.read_bytes()[:-40])),
        ("model.weights.h5", lambda file: file.write_bytes(b"no HDF5")),
    ],
    ids=["objects", "step", "cut", "weights"],
)
def test_damage_that_the_checksums_confirm_is_one_sentence(tmp_path, short, name, damage):
    run_dir = shutil.copytree(short, tmp_path / "run")
    [checkpoint] = (run_dir / "checkpoints").glob("step-*")
    damage(checkpoint / name)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").unlink()
    _write_files(checkpoint, lambda _: None, manifest)
    assert find_damage(checkpoint) is None
    said = rf"{name} .*restore the checkpoint from a copy"
    refuses(said, toys.run, run_dir, dataclasses.replace(SHORT, max_steps=3))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("short")
    toys.run(run_dir, SHORT)
    return run_dir


def test_a_disk_that_fills_up_costs_the_steps_since_the_last_checkpoint(tmp_path, uninterrupted):
    said = r"cannot write checkpoint .*step-00000015 \(.*are intact"
    with file_limit() as limit:
        refuses(said, toys.run, tmp_path, callbacks=[toys.StopAt(13, lambda: limit(12_000))])
    directory = CheckpointDirectory(tmp_path)
    assert directory.steps() == [5, 8, 10]
    assert all(find_damage(directory.of_step(step)) is None for step in (5, 8, 10))
    _, model = toys.run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_line_that_cannot_be_written(tmp_path):
    log = RunLog(tmp_path)
    log.write("train", 1, {"loss": 1.0})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with file_limit(size + 10):
        said = r"cannot write .*metrics\.jsonl \(File too large\): check"
        refuses(said, log.write, "train", 2, {"loss": 1.0})
        refuses("cannot write .*metrics", log.sync)  # unwritten lines are tried again


@pytest.mark.slow
def test_minutes_go_by_another_clock(tmp_path, monkeypatch):
    """Limits and saves in minutes use a monotonic clock, and a resumed run continues its count."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    base = dataclasses.replace(SHORT, validate_every=10**6, save_every_steps=None)
    budget = dataclasses.replace(base, max_steps=10**6, max_minutes=0.02, save_every_minutes=None)
    result, _ = toys.run(tmp_path / "budget", budget, validate=None)
    assert 0 < result.step < 10**6 and result.reason == "max_minutes"
    assert 1.2 <= result.elapsed_seconds < 600
    again, _ = toys.run(tmp_path / "budget", budget, validate=None)
    assert (again.step, again.reason) == (result.step, "max_minutes")
    # A budget that is over before the first update still makes one update, which is saved.
    brief = dataclasses.replace(budget, max_minutes=1e-9)
    result, _ = toys.run(tmp_path / "brief", brief, validate=None)
    assert (result.step, result.reason) == (1, "max_minutes")
    saving = dataclasses.replace(base, max_steps=20, save_every_minutes=1e-9, keep_last=20)
    toys.run(tmp_path / "saving", saving, validate=None)
    assert CheckpointDirectory(tmp_path / "saving").steps()[0] == 1


BRIEF = dataclasses.replace(
    toys.CONFIG, max_steps=4, log_every=1, validate_every=2, save_every_steps=1, keep_last=2
)


def test_averaged_checkpoints(disk_or_bucket):
    toys.run(disk_or_bucket, BRIEF)
    network, expected = toys.toy_network(), []
    sources = last_checkpoints(disk_or_bucket, 2)
    averaged = average_checkpoints(sources, f"{disk_or_bucket}/average")
    for source in sources:
        load_network(source, network, "", average=False)
        expected.append([weight.numpy().astype(np.float64) for weight in network.weights])
    assert load_network(averaged, network, "")["averaged_steps"] == [3, 4]
    for weight, values in zip(network.weights, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(weight, np.mean(values, axis=0).astype(np.float32))
    refuses("but 9 are needed: train longer", last_checkpoints, disk_or_bucket, 9)
