"""Progress over chunks of work, for commands that are not trainings."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

import rich.console
import rich.progress

Chunk = TypeVar("Chunk")


class _Rate(rich.progress.ProgressColumn):
    """Units a second; nothing before there is a speed."""

    def __init__(self, unit: str):
        super().__init__()
        self._unit = unit

    def render(self, task: rich.progress.Task) -> str:
        return f"{task.speed:,.0f} {self._unit}/s" if task.speed else ""


def track(chunks: Iterable[tuple[int, Chunk]], total: int, what: str, unit: str) -> Iterator[Chunk]:
    """Passes chunks on and shows how far they are, on stderr where that is a terminal.

    Args:
        chunks: pairs of a chunk's size and the chunk.
        total: the sum of all sizes.
        what: the work, such as "translating".
        unit: what a size counts, such as "lines".
    """
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
        _Rate(unit),
        rich.progress.TimeRemainingColumn(),
    )
    console = rich.console.Console(file=sys.stderr)
    with rich.progress.Progress(
        *columns, console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=total)
        for size, chunk in chunks:
            progress.advance(task, size)
            yield chunk
