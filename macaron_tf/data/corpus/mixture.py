"""Documents of several sources in one order that a seed decides."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.progress import CorpusProgress
from macaron_tf.data.corpus.tokenized import cut_lines
from macaron_tf.data.sources.documents import source_reader


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


class SourceSize(NamedTuple):
    """How much a source holds.

    Args:
        documents: number of documents, or of translation pairs.
        lines: number of lines that are not blank; a translation pair counts as one.
    """

    documents: int
    lines: int


def corpus_mixture(
    config: CorpusConfig,
    data_dir: str | os.PathLike | None = None,
    max_documents: int | None = None,
    stream=None,
) -> Iterator[MixedDocument]:
    """Draws the documents of a corpus, with `language_alpha` after counting their lines.

    Args:
        config: the corpus.
        data_dir: as for `documents`.
        max_documents: the first so many of each source; None for all.
        stream: where the counting shows its progress; standard error if None.

    Returns:
        An iterator of documents.

    Raises:
        UserError: a source that cannot be read.
    """
    readers = [source_reader(source, data_dir, max_documents) for source in config.sources]
    weights = config.weights
    if config.language_alpha is not None:
        sizes = []
        with CorpusProgress(None, stream) as progress:
            for reader in readers:
                sizes.append(_size(reader(), progress))
        weights = language_weights(config.sources, sizes, config.language_alpha)
    every = config.validation_every if config.paired else None
    return mixed_documents(readers, weights, config.seed, every)


def language_weights(
    sources: Sequence[CorpusSource], sizes: Sequence[SourceSize], alpha: float
) -> list[float]:
    """The sources' weights that draw languages with q_i = p_i^alpha / sum p_j^alpha.

    Conneau and Lample 2019, section 3.1: p_i is a language's share of all sentences, which are
    lines here, and q_i becomes its share of the lines that are drawn: a weight is of documents,
    so that a source whose documents are long is drawn less often. Several sources of one language
    keep their shares in it. The translation pairs of two languages count as a language of their
    own, beside the monolingual text.

    Args:
        sources: with their languages.
        sizes: of each.
        alpha: from 0, all languages alike, to 1, as large as they are.

    Returns:
        A weight for each source.
    """
    lines: dict[tuple[str, ...], int] = {}
    for source, size in zip(sources, sizes, strict=True):
        lines[source.languages] = lines.get(source.languages, 0) + size.lines
    total = sum(lines.values())
    powers = {language: (count / total) ** alpha for language, count in lines.items()}
    return [
        powers[source.languages] * size.documents / lines[source.languages]
        for source, size in zip(sources, sizes, strict=True)
    ]


def _size(documents: Iterator[str | tuple[str, str]], progress: CorpusProgress) -> SourceSize:
    count = lines = 0
    for document in documents:
        count += 1
        lines += len(cut_lines(document)) if isinstance(document, str) else 1
        progress.counted()
    return SourceSize(count, lines)
