"""Signals that a user repeats deliberately."""

import time


class RepeatedSignals:
    """Detector of signals that a user repeats deliberately.

    Calling the object with a signal number returns whether the same signal first arrived a second
    or more ago. Faster repetitions may be accidental. For example, a key may bounce, or a terminal
    and the program `timeout` may both send a signal to the same process.
    """

    def __init__(self):
        self._first: dict[int, float] = {}  # monotonic time of each signal number, in seconds

    def __call__(self, signal_number: int) -> bool:
        now = time.monotonic()
        return now - self._first.setdefault(signal_number, now) >= 1
