"""Settings of a pre-training corpus: its sources and how its rows are cut."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from macaron_tf.errors import UserError
from macaron_tf.settings import INT32, Count, Fraction, Natural, OneOf, Positive, Settings
from macaron_tf.text.words import SPLITTERS

TEXT_PACKINGS = ("doc_text", "full_text", "doc_sentences", "full_sentences")
PAIR_PACKINGS = ("segment_pair", "sentence_pair")


@dataclasses.dataclass(frozen=True)
class CorpusSource(Settings):
    """One source of a corpus.

    Attributes:
        source: of `documents`, or of `read_pairs` where `language` is two.
        weight: relative frequency of its documents beside those of other sources, see
            `mixed_documents`; None (for every source of a corpus) reads each document once.
        language: the code of its language; of a source of translation pairs the two codes, in the
            order of the halves; None in a corpus that does not tell languages apart.
    """

    section: ClassVar[str] = "corpus.sources"

    source: str
    split: str = "train"
    weight: Positive | None = None
    language: str | tuple[str, str] | None = None

    def check(self) -> None:
        codes = self.languages
        if not all(codes) or len(set(codes)) < len(codes):
            raise self.error(
                f"language={self.language!r} of {self.source} must be a code such as 'de' or, "
                "for translation pairs, two different ones, ('en', 'de')"
            )

    @property
    def languages(self) -> tuple[str, ...]:
        """Its languages: none, one, or the two of translation pairs."""
        if self.language is None:
            return ()
        return (self.language,) if isinstance(self.language, str) else self.language

    @property
    def is_translation(self) -> bool:
        return len(self.languages) == 2


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Settings):
    """A corpus and its rows.

    Rows of translation pairs are `[CLS] a [SEP] b [SEP]`, one pair each, whatever the packing.

    Attributes:
        sources: origin of the documents: sources, their names alone, or tuples of a source's
            fields, (name, split, weight, language).
        sequence_length: L of every row, special ids included.
        pairs: rows are two segments instead of running text: "next_sentence" (BERT's: in half of
            the rows the second one is from another document) or "sentence_order" (ALBERT's: in
            half of them the two are swapped).
        packing: contents of a row. Of running text "doc_text" and "full_text" (as many ids as fit,
            of one document or going on with the next) or "doc_sentences" and "full_sentences" (as
            many whole sentences as fit); of pairs "segment_pair" (as many sentences as fit) or
            "sentence_pair" (two sentences). The last four are RoBERTa's (Liu et al. 2019, table
            2). None is "doc_text" and, of pairs, "segment_pair".
        language_alpha: draw languages with q_i ~ p_i^alpha, p_i a language's share of the lines
            (Conneau and Lample 2019, section 3.1: 0.5), see `language_weights`; None reads each
            document once. With `batch_alpha` it is of the vocabulary's lines alone.
        batch_alpha: each training batch holds one language, drawn with q_i ~ p_i^alpha (XLM's:
            0.7), and running text and translation pairs take turns, see `language_batches`; None
            mixes languages in every batch.
        validation_every: one row of running text in so many is a validation row; of pairs one
            document, and of the first three documents two. Held-out text is not trained on:
            rows of running text share no text, and pairs are made of documents of one split.
        validation_run: rows of running text that are held out together, so that they go on from
            one to the next; of as many runs one in `validation_every`.
        rows_per_shard: rows of a file, about: it ends with a document.
        seed: decides the order of the sources and the pairs.
        sentence_splitter: of `split_sentences`, where rows are made of sentences.
    """

    section: ClassVar[str] = "corpus"

    sources: tuple[CorpusSource, ...]
    # Three special ids and a few others: shorter rows teach nothing.
    sequence_length: Annotated[int, Ge(8), INT32] = 128
    pairs: Literal["none", "next_sentence", "sentence_order"] = "none"
    packing: Annotated[str, OneOf(TEXT_PACKINGS + PAIR_PACKINGS)] | None = None
    language_alpha: Fraction | None = None
    batch_alpha: Fraction | None = None
    validation_every: Annotated[int, Ge(2), INT32] = 200  # of 1 nothing is left to train on
    validation_run: Count = 1
    rows_per_shard: Count = 8192
    seed: Natural = 0
    sentence_splitter: Annotated[str, OneOf(SPLITTERS)] = "tensorflow_text"

    def __post_init__(self):
        given = self.sources
        given = (given,) if isinstance(given, str | CorpusSource) else given
        object.__setattr__(self, "sources", tuple(map(_source, given)))
        super().__post_init__()

    def check(self) -> None:
        if not self.sources:
            raise UserError("a corpus needs a source: give text:GLOB or tfds:NAME")
        for name in ("weight", "language"):
            without = [s.source for s in self.sources if s.get_config()[name] is None]
            if 0 < len(without) < len(self.sources):
                raise UserError(f"{without[0]} has no {name} but others have: give all of them one")
        known = PAIR_PACKINGS if self.paired else TEXT_PACKINGS
        if self.row_packing not in known:
            raise self.error(
                f"packing={self.packing!r} does not go with pairs={self.pairs!r}: "
                f"give one of {', '.join(known)}"
            )
        if self.repeats and self.crosses_documents:
            raise UserError(
                "weights or language_alpha and packing='full_...' exclude each other: documents "
                "that come again are packed otherwise, and validation text would be trained on"
            )
        if self.language_alpha is not None and not self.languages:
            raise UserError("language_alpha needs the sources' languages: give each its own")
        if self.language_alpha is not None and self.weights is not None:
            raise UserError(
                "weights and language_alpha exclude each other: give the sources no weights"
            )
        if self.batch_alpha is not None and (
            not self.languages or self.weights is not None or self.paired
        ):
            raise self.error(
                f"batch_alpha={self.batch_alpha} draws a language for each batch of running text: "
                "give each source its language, no source a weight, and pairs='none'"
            )
        if self.paired and self.has_translations:
            raise UserError(
                f"translation pairs and pairs={self.pairs!r} exclude each other: a translation is "
                "neither from elsewhere nor swapped; give pairs='none'"
            )
        if self.pairs == "next_sentence" and len(self.languages) > 1:
            raise UserError(
                "pairs='next_sentence' takes one language: a segment of another document would be "
                "known by its language; give pairs='sentence_order' or 'none'"
            )

    @property
    def paired(self) -> bool:
        return self.pairs != "none"

    @property
    def row_packing(self) -> str:
        return self.packing or ("segment_pair" if self.paired else "doc_text")

    @property
    def crosses_documents(self) -> bool:
        """Whether rows of running text go on with the next document."""
        return self.row_packing.startswith("full_")

    @property
    def cuts_sentences(self) -> bool:
        return self.row_packing not in ("doc_text", "full_text")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages in the order in which sources first name them: a position is an id."""
        return tuple(dict.fromkeys(code for source in self.sources for code in source.languages))

    @property
    def has_translations(self) -> bool:
        return any(source.is_translation for source in self.sources)

    @property
    def weights(self) -> list[float] | None:
        weights = [source.weight for source in self.sources]
        return None if None in weights else weights

    @property
    def draws_languages(self) -> bool:
        """Whether `language_alpha` decides how often each language is read."""
        return self.language_alpha is not None and self.batch_alpha is None

    @property
    def repeats(self) -> bool:
        """Whether documents may come again."""
        return self.weights is not None or self.draws_languages


def _source(given: Any) -> CorpusSource | dict:
    """A source from its name or its fields in a tuple; `Settings` makes it of a dictionary."""
    match given:
        case CorpusSource() | dict():
            return given
        case str():
            return CorpusSource(given)
        case list() | tuple() if 1 <= len(given) <= 4:
            return CorpusSource(*given)
    raise UserError(f"a source is {given!r}: give its name, or (name, split, weight, language)")
