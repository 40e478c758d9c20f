"""Functions for worker processes that start at once: without TensorFlow."""

import os
import pathlib
import signal
import time


def scaled(factor: int, number: int) -> tuple[int, int]:
    time.sleep(0.05 * (number % 3))  # later items are ready before earlier ones
    if number == 99:
        raise ValueError("not this one")
    return factor * number, os.getpid()


def dies(folder: pathlib.Path, item: tuple[int, int]) -> int:
    """Kills its process at the first `deaths` attempts to do an item, in the midst of a message."""
    number, deaths = item
    attempts = folder / f"attempts-{number}"
    with attempts.open("a") as file:
        file.write(".")
    if attempts.stat().st_size <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
