"""Several processes on the JAX engine make the same updates as one process, on any mesh."""

import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest

from macaron_tf.training.checkpoints import CheckpointDirectory
from tests.toys.processes import cluster, finished, on_jax, started, state_of

pytest.importorskip("jax")


def processes(jobs: list[str], count: int, devices: int = 1) -> list[subprocess.Popen]:
    """Starts `count` JAX processes that train together, with `devices` CPU devices each."""
    environment = on_jax(devices)
    toy = ["-m", "tests.toys.jax_hosts", *jobs]
    if count == 1:
        return [started(toy, **environment)]
    return [started(toy, **environment, TF_CONFIG=config) for config in cluster(count)]


def run(jobs: list[str], count: int, devices: int = 1) -> None:
    for process in processes(jobs, count, devices):
        finished(process)


def assert_equal(ours: pathlib.Path, theirs: pathlib.Path, most: float = 1e-6) -> None:
    """Asserts that two runs have equal weights, averages, moments and random states at step 8.

    `most` is the absolute and relative tolerance; 0 means bit-identical.
    """
    found, expected = (state_of(run, 8) for run in (ours, theirs))
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=most, atol=most, err_msg=name)


@pytest.mark.slow
def test_any_number_of_processes_goes_on_with_a_run(tmp_path):
    """Runs by one, two and four processes agree, and checkpoints hold whole weights.

    A run that is killed and resumed by the same number of processes is bit-identical.
    """
    one, two, killed, fewer = (tmp_path / name for name in ("one", "two", "killed", "fewer"))
    mesh = "data=2,model=2"
    run([f"{two}:{mesh}:0", f"{killed}:{mesh}:5", f"{fewer}:{mesh}:5"], count=2, devices=2)
    run([f"{killed}:{mesh}:0"], count=2, devices=2)
    more = tmp_path / "more"
    run([f"{one}:data=1:0", f"{fewer}:data=1:0", f"{more}:data=1:5"], count=1)
    run([f"{more}:{mesh}:0"], count=4)
    assert_equal(killed, two, most=0)
    assert (killed / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    for ours in (two, fewer, more):
        assert_equal(ours, one)


def in_training(out: pathlib.Path) -> list[subprocess.Popen]:
    """Starts two processes, and waits until they have saved two checkpoints of a long run."""
    both = processes([f"{out}:data=2:-1"], count=2)
    until = time.monotonic() + 300
    while len(CheckpointDirectory(out).steps()) < 2:
        assert time.monotonic() < until and both[0].poll() is None, both[0].communicate()[0]
        time.sleep(0.2)
    return both


@pytest.mark.slow
def test_a_signal_to_one_stops_both_after_a_save(tmp_path):
    both = in_training(tmp_path / "run")
    both[1].send_signal(signal.SIGTERM)
    outputs = [finished(process, 143) for process in both]
    step = max(CheckpointDirectory(tmp_path / "run").steps())
    assert all(f"step {step} is saved" in output for output in outputs), outputs


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_dies_is_one_sentence_for_the_other(victim, tmp_path):
    """If one process dies, the other process ends with an error within a minute.

    If the first process dies, JAX itself may abort the other process before the error is printed.
    """
    both = in_training(tmp_path / "run")
    both[victim].kill()
    began = time.monotonic()
    output = both[1 - victim].communicate(timeout=200)[0]
    assert time.monotonic() - began < 60
    status = both[1 - victim].returncode
    assert (status == 2 and "lost another worker" in output) or (
        victim == 0 and status == -signal.SIGABRT and "another task died" in output
    ), output
    both[victim].communicate()
