"""Signals that a user repeats deliberately, and the announcement of signals."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator


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


@contextlib.contextmanager
def announced(sentence: str, signals: Collection[int]) -> Iterator[None]:
    """Prints `sentence` to stderr as soon as one of the `signals` arrives in the `with` block.

    A handler in Python waits while the main thread is in a long call of C++ code, such as a
    compilation. Therefore, a thread reads the number of the signal, which the interpreter writes to
    a pipe at once. Only the main thread may enter the context manager.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def announce() -> None:
        while number := os.read(reader, 1)[0]:
            if number in signals:
                os.write(2, f"{sentence}\n".encode())  # not print, which may be in use
                return

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        os.write(writer, b"\0")  # ends the thread
        thread.join()
        os.close(reader)
        os.close(writer)
