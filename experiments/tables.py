"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The lines of a table, each ended by a newline: the columns' names, then the rows' cells."""
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
