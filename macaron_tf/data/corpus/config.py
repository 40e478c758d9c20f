"""Settings of a pre-training corpus: its sources, and how they are packed into rows."""

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
    """A source of documents or of translation pairs.

    Attributes:
        source: name of the source, see `documents`, or with two languages `read_pairs`.
        split: split of the source.
        weight: relative frequency of its documents among those of all sources, see
            `mixed_documents`. None: each document is read once. All sources have a weight, or none.
        language: code of its language, or of translation pairs both codes in the order of the
            halves; None: the corpus does not distinguish languages.
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
        """Codes of its languages: none, one, or the two of translation pairs."""
        if self.language is None:
            return ()
        return (self.language,) if isinstance(self.language, str) else self.language

    @property
    def is_translation(self) -> bool:
        return len(self.languages) == 2


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Settings):
    """Settings of a corpus.

    A row of a translation pair is `[CLS] a [SEP] b [SEP]`, whatever the packing.

    Attributes:
        sources: sources of the documents. Each may also be given by its name, or by a tuple (name,
            split, weight, language).
        sequence_length: L, the length of every row with special ids.
        pairs: kind of sentence pairs. "none": rows of running text. "next_sentence", BERT's: the
            second segment of half of the rows is from another document. "sentence_order", ALBERT's:
            the segments of half of the rows are swapped.
        packing: content of a row. For running text: "doc_text" and "full_text", as many ids as fit,
            of one document or of consecutive ones; "doc_sentences" and "full_sentences", as many
            whole sentences as fit. For pairs: "segment_pair", as many sentences as fit;
            "sentence_pair", two sentences. The last four are RoBERTa's (Liu et al. 2019, table 2).
            None: "doc_text", or for pairs "segment_pair".
        language_alpha: exponent of XLM's sampling of languages with q_i ~ p_i^alpha, where p_i is a
            language's share of the lines (Conneau and Lample 2019, section 3.1: 0.5), see
            `language_weights`; None: each document is read once. With `batch_alpha` it affects only
            the lines that the vocabulary is trained on.
        batch_alpha: exponent for drawing the single language of each training batch with
            q_i ~ p_i^alpha (XLM's: 0.7); batches of running text and of translation pairs
            alternate, see `language_batches`. None: batches mix languages.
        validation_every: one in this number of rows of running text is a validation row; for pairs
            one in this number of documents, and two of the first three. Training never sees
            held-out text: rows of running text share none, and pairs are made within a split.
        validation_run: number of consecutive rows of running text that are held out together; one
            in `validation_every` of such runs is held out.
        rows_per_shard: approximate number of rows per file; a file ends with a document.
        seed: seed of the order of the sources and of the pairs.
        sentence_splitter: name of a splitter of `split_sentences`, used if rows consist of
            sentences.
    """

    section: ClassVar[str] = "corpus"

    sources: tuple[CorpusSource, ...]
    # Room for three special ids and a few others; shorter rows are useless.
    sequence_length: Annotated[int, Ge(8), INT32] = 128
    pairs: Literal["none", "next_sentence", "sentence_order"] = "none"
    packing: Annotated[str, OneOf(TEXT_PACKINGS + PAIR_PACKINGS)] | None = None
    language_alpha: Fraction | None = None
    batch_alpha: Fraction | None = None
    validation_every: Annotated[int, Ge(2), INT32] = 200  # 1 would leave nothing to train on
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
                raise UserError(
                    f"{without[0]} has no {name}, but other sources have one: give each its own"
                )
        known = PAIR_PACKINGS if self.paired else TEXT_PACKINGS
        if self.row_packing not in known:
            raise self.error(
                f"packing={self.packing!r} does not go with pairs={self.pairs!r}: "
                f"give one of {', '.join(known)}"
            )
        if self.repeats and self.crosses_documents:
            raise UserError(
                "weights or language_alpha and packing='full_...' exclude each other: a repeated "
                "document is packed differently, so that training would see validation text"
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
                f"translation pairs and pairs={self.pairs!r} exclude each other: a translation can "
                "be neither replaced nor swapped; give pairs='none'"
            )
        if self.pairs == "next_sentence" and len(self.languages) > 1:
            raise UserError(
                "pairs='next_sentence' takes one language: the language would reveal a segment of "
                "another document; give pairs='sentence_order' or 'none'"
            )

    @property
    def paired(self) -> bool:
        return self.pairs != "none"

    @property
    def row_packing(self) -> str:
        return self.packing or ("segment_pair" if self.paired else "doc_text")

    @property
    def crosses_documents(self) -> bool:
        """Whether a row of running text may continue with the next document."""
        return self.row_packing.startswith("full_")

    @property
    def cuts_sentences(self) -> bool:
        return self.row_packing not in ("doc_text", "full_text")

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages in the order of the sources; a code's position is its id."""
        return tuple(dict.fromkeys(code for source in self.sources for code in source.languages))

    @property
    def has_translations(self) -> bool:
        return any(source.is_translation for source in self.sources)

    @property
    def weights(self) -> list[float] | None:
        weights = [source.weight for source in self.sources if source.weight is not None]
        return weights if len(weights) == len(self.sources) else None

    @property
    def draws_languages(self) -> bool:
        """Whether `language_alpha` determines how often each language is read."""
        return self.language_alpha is not None and self.batch_alpha is None

    @property
    def repeats(self) -> bool:
        """Whether documents may be repeated."""
        return self.weights is not None or self.draws_languages


def _source(given: Any) -> CorpusSource | dict:
    """Makes a source from its name or a tuple of its fields; `Settings` converts a dictionary."""
    match given:
        case CorpusSource() | dict():
            return given
        case str():
            return CorpusSource(given)
        case list() | tuple() if 1 <= len(given) <= 4:
            return CorpusSource(*given)
    raise UserError(f"a source is {given!r}: give its name, or (name, split, weight, language)")
