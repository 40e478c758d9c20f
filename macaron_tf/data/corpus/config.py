"""What a pre-training corpus is made of and how its rows are cut."""

import dataclasses
from collections.abc import Sequence

from macaron_tf.errors import UserError
from macaron_tf.text.sentences import SPLITTERS

PAIRS = ("none", "next_sentence", "sentence_order")
TEXT_PACKINGS = ("doc_text", "full_text", "doc_sentences", "full_sentences")
PAIR_PACKINGS = ("segment_pair", "sentence_pair")
_LEAST_LENGTH = 8  # three special ids and a few others; shorter rows teach nothing


@dataclasses.dataclass(frozen=True)
class CorpusSource:
    """One source of a corpus.

    Args:
        source: of `documents`, or of `read_pairs` where `language` is two.
        split: its split.
        weight: how often its documents are drawn beside those of other sources, see
            `mixed_documents`; None (for every source of a corpus) reads each document once.
        language: the code of its language; of a source of translation pairs the two codes, in the
            order of the halves; None in a corpus that does not tell languages apart.

    Raises:
        UserError: a value that cannot be.
    """

    source: str
    split: str = "train"
    weight: float | None = None
    language: str | tuple[str, str] | None = None

    def __post_init__(self):
        number = isinstance(self.weight, int | float) and 0 < self.weight < float("inf")
        if self.weight is not None and not number:
            raise UserError(
                f"the weight of {self.source} is {self.weight}: it must be a number above 0"
            )
        if isinstance(self.language, list):  # as JSON has it
            object.__setattr__(self, "language", tuple(self.language))
        codes = self.languages
        two = not isinstance(self.language, tuple) or len(set(codes)) == len(codes) == 2
        if not two or not all(isinstance(code, str) and code for code in codes):
            raise UserError(
                f"the language of {self.source} is {self.language!r}: give a code such as 'de' or, "
                "for translation pairs, two different ones, ('en', 'de')"
            )

    @property
    def languages(self) -> tuple[str, ...]:
        """Its languages: none, one, or the two of translation pairs."""
        if self.language is None:
            return ()
        return self.language if isinstance(self.language, tuple) else (self.language,)

    @property
    def is_translation(self) -> bool:
        """Whether it gives translation pairs instead of documents."""
        return len(self.languages) == 2


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """A corpus and its rows.

    Rows of translation pairs are `[CLS] a [SEP] b [SEP]`, one pair each, whatever the packing.

    Args:
        sources: where the documents come from: sources, their names alone, or tuples of what a
            source is made of, (name, split, weight, language).
        sequence_length: L of every row, special ids included.
        pairs: rows are two segments instead of running text: "next_sentence" (BERT's: in half of
            the rows the second one is from another document) or "sentence_order" (ALBERT's: in
            half of them the two are swapped).
        packing: what fills a row. Of running text "doc_text" and "full_text" (as many ids as fit,
            of one document or going on with the next) or "doc_sentences" and "full_sentences" (as
            many whole sentences as fit); of pairs "segment_pair" (as many sentences as fit) or
            "sentence_pair" (two sentences). The last four are RoBERTa's (Liu et al. 2019, table
            2). None is "doc_text" and, of pairs, "segment_pair".
        language_alpha: draw languages with q_i ~ p_i^alpha, p_i a language's share of the lines
            (Conneau and Lample 2019, section 3.1: 0.5), see `language_weights`; None reads each
            document once.
        validation_every: one row of running text in so many is a validation row; of pairs one
            document, and of the first three documents two. What is held out is not trained on:
            rows of running text share no text, and pairs are made of documents of one split.
        validation_run: rows of running text that are held out together, so that they go on from
            one to the next; of as many runs one in `validation_every`.
        rows_per_shard: rows of a file, about: it ends with a document.
        seed: decides the order of the sources and the pairs.
        sentence_splitter: of `split_sentences`, where rows are made of sentences.

    Raises:
        UserError: a value that cannot be.
    """

    sources: tuple[CorpusSource, ...]
    sequence_length: int = 128
    pairs: str = "none"
    packing: str | None = None
    language_alpha: float | None = None
    validation_every: int = 200
    validation_run: int = 1
    rows_per_shard: int = 8192
    seed: int = 0
    sentence_splitter: str = "tensorflow_text"

    def __post_init__(self):
        given = self.sources
        if isinstance(given, str | CorpusSource):
            given = (given,)
        object.__setattr__(self, "sources", tuple(map(_source, given)))
        if self.sequence_length < _LEAST_LENGTH:
            raise UserError(
                f"sequence_length is {self.sequence_length}: it must be {_LEAST_LENGTH} or more"
            )
        if self.validation_every < 2:
            raise UserError(
                f"validation_every is {self.validation_every}: it must be 2 or more, "
                "or nothing is left to train on"
            )
        if self.validation_run < 1:
            raise UserError(f"validation_run is {self.validation_run}: it must be 1 or more")
        if self.rows_per_shard < 1:
            raise UserError(f"rows_per_shard is {self.rows_per_shard}: it must be 1 or more")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}: it must be 0 or more")
        _one_of("sentence_splitter", self.sentence_splitter, SPLITTERS)
        _one_of("pairs", self.pairs, PAIRS)
        self._check_sources()
        self._check_packing()
        self._check_languages()

    def _check_sources(self) -> None:
        if not self.sources:
            raise UserError("a corpus needs a source: give text:GLOB or tfds:NAME")
        for name, of_all in (
            ("weight", [source.weight for source in self.sources]),
            ("language", [source.language for source in self.sources]),
        ):
            if None in of_all and set(of_all) != {None}:
                without = self.sources[of_all.index(None)].source
                raise UserError(f"{without} has no {name} but others have: give all of them one")

    def _check_packing(self) -> None:
        if self.packing is not None:
            _one_of("packing", self.packing, TEXT_PACKINGS + PAIR_PACKINGS)
            known = PAIR_PACKINGS if self.paired else TEXT_PACKINGS
            if self.packing not in known:
                raise UserError(
                    f"packing {self.packing!r} does not go with pairs {self.pairs!r}: "
                    f"give one of {', '.join(known)}"
                )
        if self.repeats and self.crosses_documents:
            raise UserError(
                "weights or language_alpha and packing='full_...' exclude each other: documents "
                "that come again are packed otherwise, and validation text would be trained on"
            )

    def _check_languages(self) -> None:
        alpha = self.language_alpha
        if alpha is not None:
            if type(alpha) not in (int, float) or not 0 <= alpha <= 1:
                raise UserError(f"language_alpha is {alpha!r}: it must be a number from 0 to 1")
            if not self.languages:
                raise UserError("language_alpha needs the sources' languages: give each its own")
            if self.weights is not None:
                raise UserError(
                    "weights and language_alpha exclude each other: give the sources no weights"
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
        """Whether rows are pairs of segments."""
        return self.pairs != "none"

    @property
    def row_packing(self) -> str:
        """What fills a row, by name."""
        return self.packing or ("segment_pair" if self.paired else "doc_text")

    @property
    def crosses_documents(self) -> bool:
        """Whether rows of running text go on with the next document."""
        return self.row_packing.startswith("full_")

    @property
    def cuts_sentences(self) -> bool:
        """Whether rows are made of sentences, so that documents are cut into them."""
        return self.row_packing not in ("doc_text", "full_text")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages in the order in which sources first name them: a place is a language's id.

        Empty where the corpus does not tell languages apart.
        """
        return tuple(dict.fromkeys(code for source in self.sources for code in source.languages))

    @property
    def has_translations(self) -> bool:
        """Whether a source gives translation pairs."""
        return any(source.is_translation for source in self.sources)

    @property
    def weights(self) -> Sequence[float] | None:
        """The sources' weights, or None where they have none."""
        weights = [source.weight for source in self.sources]
        return None if None in weights else weights

    @property
    def repeats(self) -> bool:
        """Whether documents may come again."""
        return self.weights is not None or self.language_alpha is not None


def config_from_record(record: dict) -> CorpusConfig:
    """A configuration as a corpus's files record it, in an earlier version's words too.

    Args:
        record: its fields.

    Returns:
        The configuration.

    Raises:
        TypeError, KeyError: it is none.
    """
    fields = dict(record)
    fields["sources"] = tuple(CorpusSource(**source) for source in fields["sources"])
    if "next_sentence" in fields:
        fields["pairs"] = "next_sentence" if fields.pop("next_sentence") else "none"
    if fields.pop("cross_documents", False):
        fields["packing"] = "full_text"
    return CorpusConfig(**fields)


def _source(given) -> CorpusSource:
    if isinstance(given, CorpusSource):
        return given
    parts = (given,) if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 4:
        raise UserError(f"a source is {given!r}: give its name, or (name, split, weight, language)")
    if not all(isinstance(part, str) for part in parts[:2]):
        raise UserError(f"a source is {given!r}: its name and split must be text")
    return CorpusSource(*parts)


def _one_of(name: str, value, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}: it must be one of {', '.join(known)}")
