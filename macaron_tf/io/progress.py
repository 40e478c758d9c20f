"""Progress display: a bar in a terminal, or lines of text in other outputs."""

import contextlib
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
_REFRESH = 0.5  # seconds between updates of the bar


class _Rate(rich.progress.ProgressColumn):
    """Column that shows units per second, once the rate is known."""

    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: rich.progress.Task) -> str:
        return f"{task.speed:,.0f} {self._unit}/s" if task.speed else ""


class _Elapsed(rich.progress.ProgressColumn):
    """Column that shows the time since the start."""

    def render(self, task: rich.progress.Task) -> str:
        return f"{clock(task.elapsed or 0)} elapsed"


class Progress:
    """Context manager that shows the progress of long work on standard error.

    After 5 seconds, a terminal shows a bar with the rate and the remaining time. If the total is
    unknown, the terminal shows a spinner with the elapsed time. Any other output gets a line of
    text every 30 seconds. A `Progress` inside the `with` block of another `Progress` shows nothing.

    Args:
        title: name of the work, such as "tokenizing".
        unit: plural name of the units that `advance` counts; "" means that nothing is counted.
        total: total number of units; `None` means that the total is unknown.
    """

    _outermost: ClassVar[object] = None

    def __init__(self, title: str = "", unit: str = "", total: int | None = None):
        self._stream = sys.stderr
        self._title, self._unit, self._total = title, unit, total
        self._done, self._text = 0, ""
        self._bar: rich.progress.Progress | None = None
        self._ended, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> "Progress":
        self._began = time.monotonic()
        if Progress._outermost is None:
            Progress._outermost = self
            terminal = self._stream.isatty()
            self._next = self._began + (_PATIENCE if terminal else _SECONDS)
            self._show = self._show_bar if terminal else self._print_line
            # A thread, because a single long call, such as a compilation, never calls `advance`.
            threading.Thread(target=self._watch, daemon=True).start()
        else:
            self._next = float("inf")
        return self

    def __exit__(self, *exception) -> None:
        self.end()

    def end(self) -> None:
        """Ends the display before the end of the `with` block. Further calls do nothing."""
        self._show_if_due()
        with self._lock:
            if Progress._outermost is self:
                Progress._outermost = None
            if self._bar and not self._ended.is_set():
                self._show_bar()
                self._bar.stop()
            self._ended.set()

    def advance(self, count: int = 1, text: str = "") -> None:
        """Adds finished units to the count.

        Args:
            count: number of finished units.
            text: new text beside the count. "" keeps the previous text.
        """
        self._done += count
        self._text = text or self._text
        self._show_if_due()

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and counts each item as a finished unit."""
        for item in items:
            yield item
            self.advance()

    def _watch(self) -> None:
        while not self._ended.wait(_REFRESH):
            self._show_if_due()

    def _show_if_due(self) -> None:
        if time.monotonic() < self._next:
            return
        with self._lock:
            if time.monotonic() >= self._next and not self._ended.is_set():
                self._show()
                self._next = time.monotonic() + (_REFRESH if self._bar else _SECONDS)

    def _show_bar(self) -> None:
        if self._bar is None:
            self._bar = self._new_bar()
            self._bar.start()
        self._bar.update(self._task, completed=self._done, description=self._text)

    def _new_bar(self) -> rich.progress.Progress:
        columns = [rich.progress.TextColumn(self._title)] if self._title else []
        if self._total:
            columns += [rich.progress.BarColumn()]
        else:
            columns = [rich.progress.SpinnerColumn(), *columns]
        if self._unit:
            of = "/{task.total:,.0f}" if self._total else ""
            columns += [
                rich.progress.TextColumn("{task.completed:,.0f}" + f"{of} {self._unit}"),
                rich.progress.TextColumn("{task.description}"),
                _Rate(self._unit),
            ]
        columns.append(rich.progress.TimeRemainingColumn() if self._total else _Elapsed())
        bar = rich.progress.Progress(
            *columns, console=rich.console.Console(file=self._stream), refresh_per_second=2
        )
        self._task = bar.add_task(self._text, total=self._total, completed=self._done)
        bar.tasks[0].start_time = bar.get_time() - (time.monotonic() - self._began)
        return bar

    def _print_line(self) -> None:
        elapsed = time.monotonic() - self._began
        parts = [self._title] if self._title else []
        if self._unit:
            of = f" of {self._total:,}" if self._total else ""
            parts += [f"{self._done:,}{of} {self._unit}", *filter(None, [self._text])]
        if self._total and self._done:
            parts.append(
                f"{clock(elapsed)}, {clock(elapsed * (self._total / self._done - 1))} left"
            )
        else:
            parts.append(f"{clock(elapsed)} elapsed")
        print("  ".join(parts), file=self._stream, flush=True)


def track(chunks: Iterable[tuple[int, Item]], total: int, title: str, unit: str) -> Iterator[Item]:
    """Yields chunks, and shows the number of units in the chunks so far.

    Args:
        chunks: pairs (number of units in the chunk, chunk).
        total: total number of units.
        title: see `Progress`.
        unit: see `Progress`.
    """
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
