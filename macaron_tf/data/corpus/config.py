"""Settings of a pre-training corpus: its sources and its packing into rows."""

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
        source: name of the source, such as "text:GLOB". The accepted forms are `DOCUMENT_FORMS` of
            `macaron_tf.data.sources.names`, or `PAIR_FORMS` for translation pairs.
        split: split of the source.
        weight: weight of the source when documents are drawn from several sources; `None` means
            that each document is read once. Either all sources or no sources have a weight.
        language: language code of the source. Translation pairs have two codes, in the order of
            the halves. `None` means that the corpus does not distinguish languages. Either all
            sources or no sources have a language.
    """

    section: ClassVar[str] = "data.sources"

    source: str
    split: str = "train"
    weight: Positive | None = None
    language: str | tuple[str, str] | None = None

    def check(self) -> None:
        codes = self.languages
        if not all(codes) or len(set(codes)) < len(codes):
            raise self.error(f"language={self.language!r} must be one code, or two for pairs")

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes in `language` as a tuple, which has two codes for translation pairs."""
        if self.language is None:
            return ()
        return (self.language,) if isinstance(self.language, str) else self.language

    @property
    def pair(self) -> tuple[str, ...]:
        """Codes of the two halves of translation pairs. The tuple is empty for documents."""
        return self.languages if len(self.languages) == 2 else ()


@dataclasses.dataclass(frozen=True)
class CorpusConfig(Settings):
    """Settings of a pre-training corpus.

    A translation pair becomes a row `[CLS] a [SEP] b [SEP]`, or is left out if it does not fit into
    a row. `packing` has no effect on translation pairs.

    Attributes:
        sources: sources of documents or translation pairs. A source may also be written as its name
            or as a tuple (name, split, weight, language).
        sequence_length: number of ids per row, including special ids and padding.
        pairs: pre-training task on segment pairs. "none" means rows of running text. With
            "next_sentence" (BERT), the second segment of a row comes from another document with a
            probability of at least 0.5. With "sentence_order" (ALBERT), the segments of a row are
            swapped with a probability of 0.5.
        packing: content of a row. For running text, "doc_text" takes as many tokens as fit from one
            document, and "full_text" continues with the next document. "doc_sentences" and
            "full_sentences" are the variants of "doc_text" and "full_text" that take only whole
            sentences. For pairs, "segment_pair" takes as many sentences as fit, and "sentence_pair"
            takes two sentences. All values except "doc_text" and "full_text" are from RoBERTa (Liu
            et al. 2019, table 2). `None` means "doc_text" for running text and "segment_pair" for
            pairs.
        language_alpha: exponent alpha of language sampling. Language i is drawn with a probability
            proportional to p_i^alpha, where p_i is the share of language i in all lines of text.
            XLM uses 0.5 (Conneau and Lample 2019, section 3.1). `None` means no language sampling.
            If `batch_alpha` is set, `language_alpha` affects only the text on which the vocabulary
            is trained.
        batch_alpha: exponent alpha for drawing one language per training batch. Language i is drawn
            with a probability proportional to p_i^alpha, where p_i is the share of language i in
            the rows. XLM uses 0.7. If the corpus has both running text and translation pairs,
            updates on the two alternate. `None` means that a batch mixes languages.
        validation_every: interval between held-out rows. One in `validation_every` rows of running
            text and translation pairs is a validation row. For segment pairs, and for rows that
            cross documents of sources with weights, one in `validation_every` documents is held
            out, and the first and third document always are. Held-out rows and documents are not
            used for training.
        validation_run: number of consecutive rows that form a run. Runs are held out as a whole,
            one in every `validation_every` runs. `validation_run` has no effect if documents are
            held out.
        rows_per_shard: approximate number of rows per file. A training file ends at the end of a
            document. With `batch_alpha`, each language has its own training files, and the number
            applies to the files of all languages together.
        seed: seed of the order in which documents are drawn from the sources, and of the lengths,
            splits, replacements and swaps in segment pairs.
        sentence_splitter: name of the sentence splitter, if rows consist of whole sentences.
    """

    section: ClassVar[str] = "data"

    sources: tuple[CorpusSource, ...]
    # A row needs room for three special ids and a few tokens. Shorter rows are useless.
    sequence_length: Annotated[int, Ge(8), INT32] = 128
    pairs: Literal["none", "next_sentence", "sentence_order"] = "none"
    packing: Annotated[str, OneOf(TEXT_PACKINGS + PAIR_PACKINGS)] | None = None
    language_alpha: Fraction | None = None
    batch_alpha: Fraction | None = None
    validation_every: Annotated[int, Ge(2), INT32] = 200  # 1 would leave no training row
    validation_run: Count = 1
    rows_per_shard: Count = 8192
    seed: Natural = 0
    sentence_splitter: Annotated[str, OneOf(SPLITTERS)] = "tensorflow_text"

    def __post_init__(self, trust_code: bool):
        sources = self.sources
        sources = (sources,) if isinstance(sources, str | CorpusSource) else sources
        object.__setattr__(self, "sources", tuple(map(_parse_source, sources)))
        super().__post_init__(trust_code)

    def check(self) -> None:
        for name in ("weight", "language"):
            missing = [s.source for s in self.sources if s.get_config()[name] is None]
            if 0 < len(missing) < len(self.sources):
                raise UserError(f"{missing[0]} has no {name}: give each source a {name}, or none")
        choices = PAIR_PACKINGS if self.paired else TEXT_PACKINGS
        if self.row_packing not in choices:
            raise self.error(f"packing={self.packing!r} does not fit data.pairs={self.pairs!r}")
        for name in ("language_alpha", "batch_alpha"):
            if getattr(self, name) is not None and (not self.languages or self.weights):
                raise self.error(f"{name} needs a language and no weight of each source")
        several = self.batch_alpha is not None or self.has_translations
        if self.paired and (several or (self.pairs == "next_sentence" and len(self.languages) > 1)):
            mend = "set pairs='none'" if several else "give one language"
            raise self.error(f"pairs={self.pairs!r} does not fit the other settings: {mend}")

    @property
    def paired(self) -> bool:
        return self.pairs != "none"

    @property
    def holds_out_documents(self) -> bool:
        """Whether documents are held out for validation, and not rows.

        If documents are repeated and rows cross documents, each repetition is packed differently,
        which would put the text of a validation row into new training rows.
        """
        return self.paired or (self.repeats and self.crosses_documents)

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
        """Distinct language codes in the order of the sources. The index of a code is its id."""
        return tuple(dict.fromkeys(code for source in self.sources for code in source.languages))

    @property
    def language_ids(self) -> list[tuple[int, int]]:
        """Ids of the languages of a row's two halves, for each source, (0, 0) without languages."""
        index, codes = self.languages.index, [source.languages for source in self.sources]
        return [(index(pair[0]), index(pair[-1])) if pair else (0, 0) for pair in codes]

    @property
    def has_translations(self) -> bool:
        return any(source.pair for source in self.sources)

    @property
    def weights(self) -> list[float] | None:
        weights = [source.weight for source in self.sources if source.weight is not None]
        return weights if len(weights) == len(self.sources) else None

    @property
    def draws_languages(self) -> bool:
        """Whether `language_alpha` sets the share of each language in the corpus."""
        return self.language_alpha is not None and self.batch_alpha is None

    @property
    def repeats(self) -> bool:
        """Whether a document may occur several times."""
        return self.weights is not None or self.draws_languages


def _parse_source(value: Any) -> CorpusSource | dict:
    """Converts a name or a tuple to a `CorpusSource`."""
    value = (value,) if isinstance(value, str) else value
    if isinstance(value, CorpusSource | dict):
        return value
    if isinstance(value, list | tuple) and 1 <= len(value) <= 4:
        return CorpusSource(*value)
    raise UserError(f"{value!r} is not a source: give a name, or (name, split, weight, language)")
