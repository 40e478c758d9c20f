"""What a pre-training corpus is made of and how its rows are cut."""

import dataclasses
from collections.abc import Sequence

from macaron_tf.data.sentences import SPLITTERS
from macaron_tf.errors import UserError

_LEAST_LENGTH = 8  # three special ids and a few others; shorter rows teach nothing


@dataclasses.dataclass(frozen=True)
class CorpusSource:
    """One source of a corpus.

    Args:
        source: of `documents`.
        split: its split.
        weight: how often its documents are drawn beside those of other sources, see
            `mixed_documents`; None (for every source of a corpus) reads each document once.
    """

    source: str
    split: str = "train"
    weight: float | None = None

    def __post_init__(self):
        number = isinstance(self.weight, int | float) and 0 < self.weight < float("inf")
        if self.weight is not None and not number:
            raise UserError(
                f"the weight of {self.source} is {self.weight}: it must be a number above 0"
            )


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """A corpus and its rows.

    Args:
        sources: where the documents come from: sources, their names alone, or tuples of what a
            source is made of, (name, split, weight).
        sequence_length: L of every row, special ids included.
        next_sentence: rows are BERT's sentence pairs instead of running text.
        cross_documents: rows of running text go on with the next document.
        validation_every: one row of running text in so many is a validation row; of pairs one
            document, and of the first three documents two. What is held out is not trained on:
            rows of running text share no text, and pairs are made of documents of one split.
        rows_per_shard: rows of a file, about: it ends with a document.
        seed: decides the order of the sources and the pairs.
        sentence_splitter: of `split_sentences`, for the pairs: running text needs no sentences.

    Raises:
        UserError: a value that cannot be.
    """

    sources: tuple[CorpusSource, ...]
    sequence_length: int = 128
    next_sentence: bool = False
    cross_documents: bool = False
    validation_every: int = 200
    rows_per_shard: int = 8192
    seed: int = 0
    sentence_splitter: str = "tensorflow_text"

    def __post_init__(self):
        given = self.sources
        if isinstance(given, str | CorpusSource):
            given = (given,)
        sources = tuple(map(_source, given))
        object.__setattr__(self, "sources", sources)
        if not sources:
            raise UserError("a corpus needs a source: give text:GLOB or tfds:NAME")
        weighted = [source.weight is not None for source in sources]
        if any(weighted) and not all(weighted):
            unweighted = sources[weighted.index(False)].source
            raise UserError(f"{unweighted} has no weight but others have: give all of them one")
        if self.sequence_length < _LEAST_LENGTH:
            raise UserError(
                f"sequence_length is {self.sequence_length}: it must be {_LEAST_LENGTH} or more"
            )
        if self.validation_every < 2:
            raise UserError(
                f"validation_every is {self.validation_every}: it must be 2 or more, "
                "or nothing is left to train on"
            )
        if self.rows_per_shard < 1:
            raise UserError(f"rows_per_shard is {self.rows_per_shard}: it must be 1 or more")
        if self.next_sentence and self.cross_documents:
            raise UserError(
                "next_sentence and cross_documents exclude each other: a pair tells whether its "
                "halves are of one document"
            )
        if self.sentence_splitter not in SPLITTERS:
            raise UserError(
                f"sentence_splitter is {self.sentence_splitter!r}: it must be one of "
                f"{', '.join(SPLITTERS)}"
            )

        if any(weighted) and self.cross_documents:
            raise UserError(
                "weights and cross_documents exclude each other: documents that come again are "
                "packed otherwise, and validation text would be trained on"
            )
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}: it must be 0 or more")

    @property
    def weights(self) -> Sequence[float] | None:
        """The sources' weights, or None where they have none."""
        weights = [source.weight for source in self.sources]
        return None if None in weights else weights


def _source(given) -> CorpusSource:
    if isinstance(given, CorpusSource):
        return given
    parts = (given,) if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3:
        raise UserError(f"a source is {given!r}: give its name, or (name, split, weight)")
    if not all(isinstance(part, str) for part in parts[:2]):
        raise UserError(f"a source is {given!r}: its name and split must be text")
    return CorpusSource(*parts)
