"""Damaged checkpoints, full disks and odd clocks: a run goes on, or says in a sentence why not."""

import contextlib
import dataclasses
import resource
import shutil
import time

import pytest

from macaron_tf.errors import UserError
from macaron_tf.training.checkpoints import CheckpointDirectory, find_damage
from macaron_tf.training.progress import JsonLines
from tests.training.test_train import SHORT, StopAt, assert_same_run, run

FILES = ("model.weights.h5", "ema.weights.h5", "training_state.npz", "manifest.json")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("uninterrupted")
    result, model = run(run_dir)
    return run_dir, result, model


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_costs_the_steps_since_the_one_before(tmp_path, uninterrupted, capsys, name):
    run_dir = shutil.copytree(uninterrupted[0], tmp_path / "run")
    flip(run_dir / "checkpoints" / "step-00000020" / name)
    _, model = run(run_dir)
    warning = capsys.readouterr().err
    assert f"step-00000020/{name} is not as it was written; it is skipped" in warning
    assert_same_run(run_dir, model, uninterrupted)
    assert find_damage(run_dir / "checkpoints" / "step-00000020") is None


def test_several_damaged_ones_are_passed_over(tmp_path, uninterrupted, capsys):
    """A truncated one, a half deleted one and one without its manifest."""
    run_dir = shutil.copytree(uninterrupted[0], tmp_path / "run")
    directory = CheckpointDirectory(run_dir)
    steps = directory.steps()
    assert steps[-3:] == [15, 16, 20]
    (directory.of_step(20) / "training_state.npz").write_bytes(b"PK")
    for name in FILES[:2]:
        (directory.of_step(16) / name).unlink()
    (directory.of_step(15) / "manifest.json").unlink()
    _, model = run(run_dir)
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split("step-000000")[1][:2] for line in warnings] == ["20", "16", "15"]
    assert_same_run(run_dir, model, uninterrupted)
    assert directory.steps() == steps
    assert all(find_damage(directory.of_step(step)) is None for step in steps)


def limit_files(size):
    """Lets no file grow beyond so many bytes: as on a full disk, writing fails."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))


@contextlib.contextmanager
def limits_lifted():
    """Lifts the limit before pytest writes on, whose output may go to a file too."""
    try:
        yield
    finally:
        limit_files(None)


def test_a_disk_that_fills_up_costs_the_steps_since_the_last_checkpoint(tmp_path, uninterrupted):
    said = r"cannot write checkpoint .*step-00000015: .*are intact"
    with limits_lifted(), pytest.raises(UserError, match=said):
        run(tmp_path, callbacks=[StopAt(13, lambda: limit_files(12_000))])
    directory = CheckpointDirectory(tmp_path)
    assert directory.steps() == [5, 8, 10]
    assert all(find_damage(directory.of_step(step)) is None for step in (5, 8, 10))
    _, model = run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_disk_without_room_for_a_line(tmp_path, uninterrupted):
    """The metrics, which come between checkpoints."""
    said = r"cannot write .*metrics\.jsonl: .*same command again"
    with limits_lifted(), pytest.raises(UserError, match=said):
        run(tmp_path, callbacks=[StopAt(11, lambda: limit_files(700))])
    _, model = run(tmp_path)
    assert_same_run(tmp_path, model, uninterrupted)


def test_a_line_that_cannot_be_written(tmp_path):
    log = JsonLines(tmp_path)
    log.start(0, 0)
    log.train(1, {"loss": 1.0}, {"seconds": 1.0})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with limits_lifted():
        limit_files(size + 10)
        with pytest.raises(
            UserError, match=r"cannot write .*metrics\.jsonl: File too large; check"
        ):
            log.train(2, {"loss": 1.0}, {"seconds": 1.0})
        with pytest.raises(UserError, match="cannot write .*metrics"):
            log.finish()  # what was not written is tried once more


@pytest.mark.parametrize("day", [86_400.0, -86_400.0])
def test_a_clock_that_jumps(tmp_path, monkeypatch, day):
    """Only TensorBoard's wall time knows the time of day."""
    clock, calls = time.time, []

    def jumping():
        calls.append(None)
        return clock() + day * len(calls)

    monkeypatch.setattr(time, "time", jumping)
    config = dataclasses.replace(
        SHORT,
        max_steps=6,
        log_every=1,
        max_minutes=60.0,
        save_every_minutes=60.0,
        save_every_steps=None,
    )
    result, _ = run(tmp_path, config, validate=None)
    assert time.time() != clock() and len(calls) > 1
    assert (result.step, result.reason) == (6, "max_steps")
    assert 0 < result.elapsed_seconds < 600
    assert CheckpointDirectory(tmp_path).steps() == [6]


def test_minutes_go_by_another_clock(tmp_path, monkeypatch):
    """The budget and the saving by minutes, where the time of day stands still."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    base = dataclasses.replace(SHORT, validate_every=10**6, save_every_steps=None)
    budget = dataclasses.replace(base, max_steps=10**6, max_minutes=0.05, save_every_minutes=None)
    result, _ = run(tmp_path / "budget", budget, validate=None)
    assert result.reason == "max_minutes"
    assert 3.0 <= result.elapsed_seconds < 600
    # The first update, which is traced, takes longer than the 60 ms.
    saving = dataclasses.replace(base, max_steps=20, save_every_minutes=0.001, keep_last=20)
    run(tmp_path / "saving", saving, validate=None)
    assert CheckpointDirectory(tmp_path / "saving").steps()[0] == 1
