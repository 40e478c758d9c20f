"""Tests of worker processes: results in order, errors, and workers that are killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from macaron_tf.data.processes import Processes
from tests.harness import refuses
from tests.toys.shards import dies, scaled, workers_of


@pytest.mark.parametrize("count", [1, 3])
def test_results_are_in_the_order_of_the_items(count):
    taken = []

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    with Processes(count, 10) as pool:
        results, workers = [], set()
        once = (result for result, _ in pool.map(scaled, items()))
        for result, worker in pool.map(scaled, once):
            results.append(result)
            workers.add(worker)
            # At most 2 `count` items wait in each of the two maps, and each map has requested one
            # more.
            assert len(taken) <= len(results) + 2 * (2 * count + 1)
        assert results == [100 * number for number in range(20)]
        assert len(workers) == count and (os.getpid() in workers) == (count == 1)
        with pytest.raises((ValueError, RuntimeError), match="not this one"):
            list(pool.map(scaled, [1, 99, 2]))
        refuses("text 98: has no words", list, pool.map(scaled, [1, 98, 2]))


def test_a_killed_worker_is_one_sentence():
    with Processes(2, None) as pool:
        refuses("a worker died, perhaps for lack", list, pool.map(dies, [0, 1, 2, 3]))


@pytest.mark.thorough
def test_they_end_with_their_caller(tmp_path):
    """If the parent process is killed, each worker ends as soon as its current job is done."""
    code = (
        "import sys, time; sys.argv[0] = 'macaron'\n"
        "from macaron_tf.data.processes import Processes\n"
        "from tests.toys.shards import sleeps\n"
        f"with Processes(2, {str(tmp_path / 'on')!r}) as pool: list(pool.map(sleeps, [1] * 9))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "on").exists():
        time.sleep(0.02)
    found = workers_of(caller.pid)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert len(found) == 2
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in found):
        time.sleep(0.02)
