"""Ctrl-C and SIGTERM: finish the update, save, leave with a status that says so."""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A run that was stopped by a signal after saving; exit status 128 + the signal's number.

    130 after Ctrl-C, 143 after SIGTERM, as a shell reports them.
    """

    def __init__(self, signal_number: int, step: int):
        super().__init__(128 + signal_number)
        self.step = step


class StoppedByHand(BaseException):
    """Thrown into a validation by a signal; an ordinary `except Exception` does not stop it."""


class Interruptions:
    """While the context lasts, the first signal only sets `received`; a second one acts at once.

    Signals reach Python's main thread only: in any other, nothing is caught.
    """

    def __init__(self):
        self.received: int | None = None
        self._raises = False
        self._previous: dict = {}

    def __enter__(self) -> "Interruptions":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error) -> None:
        self._restore()

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """While the context lasts, a signal breaks off what runs inside, quietly."""
        self._raises = True
        try:
            yield
        except StoppedByHand:
            pass
        finally:
            self._raises = False

    def _handle(self, number, frame) -> None:
        self.received = number
        self._restore()
        if self._raises:
            raise StoppedByHand

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
