"""Progress of long work: a bar where the stream is a terminal, else a line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import rich.console
import rich.progress

Chunk = TypeVar("Chunk")
_SECONDS = 30  # between two lines where there is no terminal
_REFRESH = 0.5  # seconds between two states of the bar


class _Rate(rich.progress.ProgressColumn):
    """Units a second; nothing before there is a speed."""

    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: rich.progress.Task) -> str:
        return f"{task.speed:,.0f} {self._unit}/s" if task.speed else ""


class Progress:
    """Counts units of work; used in a `with`.

    Args:
        unit: plural name of a unit, such as "documents".
        total: number of units, None where it is not known.
        title: the work, shown before the bar.
        lines: where the stream is no terminal, print a line every half minute; otherwise nothing.
    """

    def __init__(self, unit: str, total: int | None = None, title: str = "", lines: bool = True):
        self._stream = sys.stderr
        self._unit, self._total, self._lines = unit, total, lines
        self._terminal = self._stream.isatty()
        self._done, self._text = 0, ""
        self._last = time.monotonic()
        of = "/{task.total:,.0f}" if total else ""
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn(title),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.completed:,.0f}" + f"{of} {unit}"),
            rich.progress.TextColumn("{task.description}"),
            _Rate(unit),
            rich.progress.TimeRemainingColumn(),
            console=rich.console.Console(file=self._stream),
            refresh_per_second=2,
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._terminal:
            self._show()
        self._bar.stop()

    def advance(self, count: int = 1, text: str = "") -> None:
        """Counts units that are done, and shows a text beside them; "" keeps the last one."""
        self._done += count
        self._text = text or self._text
        now = time.monotonic()
        if now - self._last >= (_REFRESH if self._terminal else _SECONDS):
            self._last = now
            self._show()

    def _show(self) -> None:
        if self._terminal:
            self._bar.update(self._task, completed=self._done, description=self._text)
        elif self._lines:
            of = f" of {self._total:,}" if self._total else ""
            line = f"{self._done:,}{of} {self._unit}  {self._text}"
            print(line, file=self._stream, flush=True)


def track(chunks: Iterable[tuple[int, Chunk]], total: int, what: str, unit: str) -> Iterator[Chunk]:
    """Passes chunks on and shows a bar on standard error where that is a terminal.

    Args:
        chunks: pairs of a chunk's size and the chunk.
    """
    with Progress(unit, total, what, lines=False) as progress:
        for size, chunk in chunks:
            progress.advance(size)
            yield chunk
