"""Functions that worker processes run.

This module does not import TensorFlow, so that the processes start fast.
"""

import os
import pathlib
import signal
import time

from macaron_tf.errors import TextError


def scaled(factor: int, number: int) -> tuple[int, int]:
    time.sleep(0.05 * (number % 3))  # items with a larger number modulo 3 finish later
    if number == 99:
        raise ValueError("not this one")
    if number == 98:
        raise TextError(98, "has no words")  # does not survive pickling
    return factor * number, os.getpid()


def dies(folder: pathlib.Path, item: tuple[int, int]) -> int:
    """Kills this process on the first `deaths` calls with `item`; later calls return `number`.

    `item` is (number, deaths). A file in `folder` counts the calls with this item.
    """
    number, deaths = item
    attempts = folder / f"attempts-{number}"
    with attempts.open("a") as file:
        file.write(".")
    if attempts.stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleeps(path, seconds):
    """Creates a file to show that the job has begun, then sleeps."""
    open(path, "a").close()
    time.sleep(seconds)
