"""Workers that stop or die, over gRPC."""

import signal
import time

import pytest

from macaron_tf.training.checkpoints import CheckpointDirectory
from tests.distribution.processes import two_workers


def started(out):
    """Two workers in the midst of a long run."""
    workers = two_workers([f"translation:{out}:steps=100000"])
    until = time.monotonic() + 300
    while len(CheckpointDirectory(out / "run").steps()) < 2:
        assert time.monotonic() < until and workers[0].poll() is None, workers[0].communicate()[0]
        time.sleep(0.2)
    return workers


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all(tmp_path):
    workers = started(tmp_path)
    workers[1].send_signal(signal.SIGTERM)
    outputs = [worker.communicate(timeout=200)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [143, 143], outputs
    step = max(CheckpointDirectory(tmp_path / "run").steps())
    assert all(f"step {step} is saved" in output for output in outputs), outputs


@pytest.mark.slow
def test_one_that_dies_is_one_sentence_for_the_other(tmp_path):
    workers = started(tmp_path)
    workers[1].kill()
    output = workers[0].communicate(timeout=200)[0]
    assert workers[0].returncode != 0
    assert "worker 0 lost another one" in output and "command again" in output
    workers[1].communicate()
