"""Functions that worker processes run, and a function that finds such processes.

This module does not import TensorFlow, so that the processes start fast.
"""

import os
import signal
import subprocess
import time

from macaron_tf.errors import TextError


def scaled(factor: int, number: int) -> tuple[int, int]:
    time.sleep(0.05 * (number % 3))  # items with a larger number modulo 3 finish later
    if number == 99:
        raise ValueError("not this one")
    if number == 98:
        raise TextError(98, "has no words")  # does not survive pickling
    return factor * number, os.getpid()


def dies(_, item: int) -> int:
    """Kills this process if `item` is 2."""
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def sleeps(path, seconds):
    """Creates a file to show that the job has begun, then sleeps."""
    open(path, "a").close()
    time.sleep(seconds)


def workers_of(pid: int) -> list[int]:
    """Returns the ids of the worker processes that the process `pid` has started."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "work(" in line]
