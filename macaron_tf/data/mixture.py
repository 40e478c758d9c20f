"""Documents of several sources in one order that a seed decides."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np


class MixedDocument(NamedTuple):
    """A document of a mixture.

    Args:
        text: its text, or the two halves of a translation pair.
        repeated: whether its source has been read to its end before.
        held_out: whether all of it is for validation.
        source: number of its source.
    """

    text: str | tuple[str, str]
    repeated: bool
    held_out: bool
    source: int


def mixed_documents(
    readers: Sequence[Callable[[], Iterator[str | tuple[str, str]]]],
    weights: Sequence[float] | None,
    seed: int,
    hold_out_every: int | None = None,
) -> Iterator[MixedDocument]:
    """Draws documents until every source has been read to its end once.

    With weights, each draw takes a source with a probability proportional to its weight, and a
    source that ends before the others do begins again: of two sources of 100 and 10,000 documents
    and weights 1 and 4, the first is read 25 times. Without weights no document comes twice: each
    draw takes one of the sources that have not ended, all of them equally likely.

    Args:
        readers: open the sources; each gives at least one document.
        weights: positive numbers, or None.
        seed: decides the order; it depends on the numbers of documents, not on their text.
        hold_out_every: one document in so many is held out, whenever it comes; of the first three
            documents two are, that a small mixture has two. None holds out none.

    Yields:
        The documents.
    """
    rng = np.random.default_rng(seed)
    # One document ahead: whether a source has ended is known with its last document.
    opened = [_Ahead(reader) for reader in readers]
    unread = set(range(len(readers)))
    count = 0  # documents, each counted when it comes for the first time
    while unread:
        drawable = sorted(unread) if weights is None else list(range(len(readers)))
        chances = np.ones(len(drawable)) if weights is None else np.array(weights, np.float64)
        bounds = np.cumsum(chances) / chances.sum()
        number = drawable[int(np.searchsorted(bounds, rng.random(), side="right"))]
        source = opened[number]
        text, place = next(source), source.place
        if not source.repeated:
            if hold_out_every and (count % hold_out_every == 0 or count == 2):
                source.held_out.add(place)
            count += 1
        yield MixedDocument(text, source.repeated, place in source.held_out, number)
        if source.ended:
            unread.discard(number)
            source.again()


class _Ahead:
    """An iterator that knows when it has given its last item, and at which place that stands."""

    def __init__(self, reader: Callable[[], Iterator]):
        self._reader = reader
        self._items: Iterator | None = None
        self._next: str | tuple[str, str] | None = None
        self.place = -1
        self.held_out: set[int] = set()  # places
        self.ended = False
        self.repeated = False

    def __next__(self) -> str | tuple[str, str]:
        if self._items is None:
            self._items = self._reader()
            self._next = next(self._items)
        item = self._next
        self._next = next(self._items, None)
        self.place += 1
        self.ended = self._next is None
        return item

    def again(self) -> None:
        self._items, self.place, self.ended, self.repeated = None, -1, False, True
