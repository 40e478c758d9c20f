"""Progress display: a bar in a terminal, or lines of text in other outputs."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

import rich.console
import rich.progress

Item = TypeVar("Item")
_PATIENCE = 5  # seconds before a terminal shows the bar
_SECONDS = 30  # seconds between lines of text in other outputs
_INTERVAL = 0.5  # seconds between two counts of `over`, because counting takes 4 microseconds


class Progress:
    """Context manager that shows the progress of long work on standard error.

    After 5 seconds, a terminal shows rich's bar. Any other output gets a line of text every 30
    seconds. A `Progress` inside the `with` block of another `Progress` shows nothing.

    Args:
        unit: plural name of the units that `advance` counts; "" means that nothing is counted.
        total: total number of units; `None` means that the total is unknown.
    """

    _outermost: ClassVar[object] = None

    def __init__(self, title: str = "", unit: str = "", total: int | None = None):
        counted = (
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn(unit + " {task.fields[text]}"),
            rich.progress.TimeRemainingColumn(),
        )
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}"),
            *(counted if unit else ()),
            rich.progress.TimeElapsedColumn(),
            console=rich.console.Console(file=sys.stderr),
            refresh_per_second=2,
            # Tasks in parallel end close together, so the time left follows the average rate.
            speed_estimate_period=math.inf,
        )
        self._unit, self._ended = unit, threading.Event()
        self._task = self._bar.add_task(title, start=False, total=total, text="")
        # A thread, because a single long call, such as a compilation, never calls `advance`.
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> "Progress":
        self._bar.start_task(self._task)
        self._bar.advance(self._task, 0)  # the beginning, from which the rate is measured
        if Progress._outermost is None:
            Progress._outermost = self
            self._thread.start()
        return self

    def end(self, *exception) -> None:
        """Ends the display before the end of the `with` block. Further calls do nothing."""
        if Progress._outermost is self:
            Progress._outermost = None
            self._ended.set()
            self._thread.join()
            if self._bar.live.is_started:
                self._bar.stop()

    __exit__ = end

    def advance(self, count: int = 1, text: str = "") -> None:
        """Adds finished units to the count. "" keeps the previous text beside the count."""
        self._bar.update(self._task, advance=count, **({"text": text} if text else {}))

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and counts each item as a finished unit."""
        number, counted, due = 0, 0, time.monotonic() + _INTERVAL
        for number, item in enumerate(items, 1):
            yield item
            if time.monotonic() >= due:
                self.advance(number - counted)
                counted, due = number, time.monotonic() + _INTERVAL
        self.advance(number - counted)

    def _show(self) -> None:
        if sys.stderr.isatty():
            if not self._ended.wait(_PATIENCE):
                self._bar.start()
            return
        while not self._ended.wait(_SECONDS):
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        [task] = self._bar.tasks
        total = f" of {task.total:,.0f}" if task.total else ""
        count = f"{task.completed:,.0f}{total} {self._unit}" if self._unit else ""
        left = task.time_remaining
        times = f"{clock(task.elapsed or 0)} elapsed"
        times += f", {clock(left)} left" if left is not None and task.total else ""
        return "  ".join(filter(None, [task.description, count, task.fields["text"], times]))


def track(chunks: Iterable[tuple[int, Item]], total: int, title: str, unit: str) -> Iterator[Item]:
    """Yields chunks, and shows the number of units in the chunks so far."""
    with Progress(title, unit, total) as progress:
        for size, chunk in chunks:
            progress.advance(size)
            yield chunk


@contextlib.contextmanager
def other_bar() -> Iterator[None]:
    """Hides every `Progress` in the `with` block, in which another bar uses the terminal."""
    Progress._outermost, previous = object(), Progress._outermost
    try:
        yield
    finally:
        Progress._outermost = previous


def clock(seconds: float) -> str:
    """Formats seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def short(value: float) -> str:
    """Formats a number briefly, such as 24.9, 1,234 or 120k."""
    if value < 999.5:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value < 10_000 else f"{value / 1_000:,.0f}k"
