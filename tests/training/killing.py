"""Processes that are killed at a moment of their own telling, and started again."""

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

EVENT = "event: "  # how a line of stdout begins that tells what the process does next


def tell(event: str) -> None:
    """Says, within a process of `run_until_killed`, what it does next."""
    print(f"{EVENT}{event}", flush=True)


@dataclasses.dataclass(frozen=True)
class Kill:
    """A moment, and who dies then.

    Attributes:
        event: what the first process told.
        occurrence: the how manyth time, from 1.
        delay: seconds after that.
        victims: numbers of the commands to kill; None = all.
    """

    event: str
    occurrence: int
    delay: float
    victims: tuple[int, ...] | None = None


def run_until_killed(
    commands: Sequence[Sequence[str]],
    kill: Kill | None,
    timeout: float = 300.0,
    grace: float = 5.0,
) -> list[int]:
    """Runs commands side by side, to a moment at which some are killed, or to their end.

    Args:
        commands: the arguments of Python, of each process.
        kill: when SIGKILL comes, and to whom; None = never.
        timeout: seconds that all may take.
        grace: seconds that those who were spared have to end by themselves, before they are killed
            too: a worker cannot go on without the others.

    Returns:
        Exit statuses; -9 of a killed process.

    Raises:
        TimeoutError: they did not end.
    """
    told: queue.Queue = queue.Queue()
    until = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
            )
            stack.callback(_end, process)
            processes.append(process)
            first = process is processes[0]
            reader = threading.Thread(target=_read, args=(process, told if first else None))
            reader.start()
            stack.callback(reader.join)
            stack.callback(_end, process)  # first: its end is the reader's
        if kill and _wait_for(kill, told, until):
            time.sleep(kill.delay)
            chosen = range(len(processes)) if kill.victims is None else kill.victims
            for number in chosen:
                processes[number].send_signal(signal.SIGKILL)
            until = min(until, time.monotonic() + grace)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.0))
            for process in processes:
                _end(process)
        for process in processes:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired as error:
                raise TimeoutError(f"{process.args} did not end in {timeout:.0f} s") from error
        return [process.returncode for process in processes]


def _read(process: subprocess.Popen, told: queue.Queue | None) -> None:
    for line in process.stdout:
        if told is not None and line.startswith(EVENT):
            told.put(line.removeprefix(EVENT).strip())
    if told is not None:
        told.put(None)


def _wait_for(kill: Kill, told: queue.Queue, until: float) -> bool:
    """Whether the moment came before the first process's end."""
    left = kill.occurrence
    while left:
        event = told.get(timeout=max(until - time.monotonic(), 0.1))
        if event is None:
            return False
        left -= event == kill.event
    return True


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
