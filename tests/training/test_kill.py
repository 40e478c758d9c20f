"""After `kill -9` at random moments, the finished run is bit-identical to an uninterrupted run."""

import contextlib
import dataclasses
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from tests.toys.processes import assert_same_run, cluster_of_two

KILLS = 20
# For each event, the maximum occurrence and delay in seconds. A save of the toy takes about 20 ms.
MOMENTS = {"step": (7, 0.005), "save": (3, 0.03), "validation": (1, 0.02)}
TOY = ("-m", "tests.toys.kill")


@dataclasses.dataclass(frozen=True)
class Kill:
    """A planned kill: a moment, and the processes that are killed at that moment.

    Attributes:
        event: event that the first process prints.
        occurrence: number of the event's occurrence, from 1.
        delay: seconds after the event.
        victims: indices of the processes to kill.
    """

    event: str
    occurrence: int
    delay: float
    victims: Sequence[int]


def planned_kills(seed: int, workers: int = 1) -> list[Kill]:
    """Returns `KILLS` planned kills, shared almost equally among steps, saves and validations.

    Delays and processes are drawn with `seed`.
    """
    rng = random.Random(seed)
    kills = []
    for number in range(KILLS):
        event = list(MOMENTS)[number % len(MOMENTS)]
        occurrences, seconds = MOMENTS[event]
        everyone = range(workers)
        victims = rng.choice([everyone, *([worker] for worker in everyone)])
        kills.append(Kill(event, rng.randint(1, occurrences), rng.uniform(0.0, seconds), victims))
    rng.shuffle(kills)
    return kills


def run_until_killed(commands: list[list[str]], kill: Kill | None = None) -> list[int]:
    """Runs toy processes in parallel until they end, or kills some of them as planned in `kill`.

    The other processes then have five seconds to end by themselves, because a worker cannot
    continue without the others. After that, all remaining processes are killed.

    Returns:
        Exit statuses, which are -9 for killed processes.
    """
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen] = []
        for command in commands:
            output = subprocess.DEVNULL if processes else subprocess.PIPE
            process = subprocess.Popen([sys.executable, *TOY, *command], stdout=output, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        alarm = threading.Timer(300, lambda: [process.kill() for process in processes])
        alarm.start()
        stack.callback(alarm.cancel)
        told = (line for line in processes[0].stdout if kill and line == f"event: {kill.event}\n")
        for occurrence, _ in enumerate(told, 1):
            if occurrence == kill.occurrence:
                time.sleep(kill.delay)
                for victim in kill.victims:
                    processes[victim].kill()
                until = time.monotonic() + 5
                for process in processes:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(max(until - time.monotonic(), 0))
                    process.kill()
                break
        statuses = [process.wait() for process in processes]
        assert alarm.is_alive(), f"{commands} did not end"
        return statuses


@pytest.mark.slow
def test_a_run_killed_twenty_times_is_the_uninterrupted_one(tmp_path):
    assert run_until_killed([[str(tmp_path / "whole")]]) == [0]
    killed = [[str(tmp_path / "killed")]]
    for kill in planned_kills(seed=1):
        # Status 0 would mean that the run ended before the moment.
        assert run_until_killed(killed, kill) == [-9], kill
    assert run_until_killed(killed) == [0]
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_two_workers_of_which_one_or_both_are_killed_twenty_times(tmp_path):
    def workers(name):
        return [[str(tmp_path / name), config] for config in cluster_of_two()]

    assert run_until_killed(workers("whole")) == [0, 0]
    for kill in planned_kills(seed=2, workers=2):
        assert -9 in run_until_killed(workers("killed"), kill), kill
    assert run_until_killed(workers("killed")) == [0, 0]
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
