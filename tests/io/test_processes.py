"""One function in several processes: every result, the errors, and no process left behind."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest

from macaron_tf.io.processes import results
from tests.harness import refuses


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_job_has_a_result(processes):
    assert sorted(results(math.sqrt, (n * n for n in range(40)), processes)) == list(range(40))


def test_one_job_stays_in_this_process():
    assert list(results(os.path.getsize, [], 4)) == []
    assert list(results(lambda job: (job, os.getpid()), [7], 4)) == [(7, os.getpid())]


def test_jobs_are_taken_one_by_one():
    taken = []
    jobs = (taken.append(n) or n for n in range(100))
    next(results(math.sqrt, jobs, 2))
    assert len(taken) <= 4


def test_an_error_is_raised_here_and_ends_the_processes():
    with pytest.raises(ValueError, match="math domain error|nonnegative input"):
        list(results(math.sqrt, [1, 4, -1, 9], 2))
    assert not _children()


def test_a_process_that_is_ended_from_outside():
    refuses("ended from outside", lambda: list(results(os._exit, [3, 4, 5], 2)))
    assert not _children()


def test_they_end_with_their_caller(tmp_path):
    """Also where that is killed, as soon as their job is done."""
    code = (
        "import sys, time; sys.argv[0] = 'macaron'\n"
        "from macaron_tf.io.processes import results\n"
        f"for _ in results(time.sleep, [0, 0, 0, 1], 2): open({str(tmp_path / 'on')!r}, 'a')"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "on").exists():
        time.sleep(0.02)
    found = _children(caller.pid)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert len(found) == 2
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _children(pid: int | None = None) -> list[int]:
    """The living processes that serve this one, or another."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid or os.getpid())]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "serve(" in line]
