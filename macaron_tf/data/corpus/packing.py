"""Packs tokenized documents into rows of a fixed length, and encodes rows as records."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import CorpusDocument, MixedDocument, corpus_documents
from macaron_tf.errors import UserError
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows


class Row(NamedTuple):
    """A row before it is encoded: its segments of ids, and its values of the columns of `Rows`."""

    segments: list[np.ndarray]
    owner: int
    boundary: int
    label: int = 0


class Rows(NamedTuple):
    """N rows `[CLS] segment [SEP] segment [SEP] ...` of L ids.

    Attributes:
        token_ids: `(N, L)` int32, padded with PAD.
        boundaries: `(N,)` int32, the column where the second half begins; L if there is none.
        pair_label: `(N,)` int32, 1 if the second half is from another document or the halves are
            swapped, else 0.
        owners: `(N,)` int64, number of the document that a row begins with.
    """

    token_ids: np.ndarray
    boundaries: np.ndarray
    pair_label: np.ndarray
    owners: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row], length: int, cls_id: int, sep_id: int) -> "Rows":
        token_ids = np.full((len(rows), length), PAD, np.int32)
        for row, filled in zip(rows, token_ids, strict=True):
            filled[0] = cls_id
            column = 1
            for ids in row.segments:
                filled[column : column + len(ids)] = ids
                column += len(ids) + 1
                filled[column - 1] = sep_id
        return cls(
            token_ids,
            np.array([row.boundary for row in rows], np.int32),
            np.array([row.label for row in rows], np.int32),
            np.array([row.owner for row in rows], np.int64),
        )


def running_rows(block: Sequence[CorpusDocument], config: CorpusConfig) -> list[Row]:
    """Packs a block's running text and translation pairs.

    Returns:
        The rows in the order of the documents that they begin with. Only rows of translation pairs
        have two languages.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(block):
        groups.setdefault(document.languages, []).append(number)
    length, rows = config.sequence_length, []
    for (first, second), members in groups.items():
        sentences = [block[number].sentences for number in members]
        if first != second:
            packed = pack_translations(sentences, length)
        else:
            packed = pack_rows(sentences, length, config.crosses_documents, config.cuts_sentences)
        rows += [row._replace(owner=members[row.owner]) for row in packed]
    return sorted(rows, key=lambda row: row.owner)


def pack_rows(
    documents: Sequence[TokenRows],
    length: int,
    cross_documents: bool,
    whole_sentences: bool = False,
) -> list[Row]:
    """Packs running text into rows `[CLS] ids [SEP]`, without losing ids.

    By default a row takes as many ids as fit, and a sentence may continue in the next row. With
    `whole_sentences` a row takes as many sentences as fit; a sentence longer than a row begins a
    row and is cut. With `cross_documents` a row continues with the next document after a [SEP],
    unless only one column is left.

    In RoBERTa (Liu et al. 2019, section 4.2), whole sentences across documents are FULL-SENTENCES,
    and within documents DOC-SENTENCES. RoBERTa enlarges the latter's batches to an equal number of
    ids; here they keep their number of rows.

    Args:
        length: L, 3 or more.
    """
    room = length - 2
    rows: list[Row] = []
    left = 0  # free columns of the last row
    for number, document in enumerate(documents):
        start = 0
        if cross_documents and left > 1:
            start = _end(document, 0, left - 1, whole_sentences)  # a [SEP] goes before it
            if start:
                rows[-1].segments.append(document.ids[:start])
                left -= start + 1
        while start < len(document.ids):
            end = _end(document, start, room, whole_sentences)
            end = end if end > start else start + room  # a sentence longer than a row
            rows.append(Row([document.ids[start:end]], number, length))
            left = room - (end - start)
            start = end
    return rows


def _end(document: TokenRows, start: int, room: int, whole_sentences: bool) -> int:
    """The end of the ids from `start` on that fit into `room`; `start` if no sentence fits."""
    if not whole_sentences:
        return min(start + room, len(document.ids))
    ends = document.offsets
    return max(start, int(ends[np.searchsorted(ends, start + room, side="right") - 1]))


def pack_pairs(
    documents: Sequence[TokenRows],
    length: int,
    rng: np.random.Generator,
    pairs: str = "next_sentence",
    short_probability: float = 0.1,
    single_sentences: bool = False,
) -> list[Row]:
    """Packs pairs of segments, `[CLS] a [SEP] b [SEP]`, as BERT or ALBERT do.

    As in BERT's released `create_pretraining_data` (Devlin et al. 2019, appendix A.2), sentences
    are collected up to a target length and split in two at random. A pair that is too long is
    trimmed, its longer segment first, at both ends.

    "next_sentence", BERT's: in half of the pairs b is replaced by sentences of another document,
    and the replaced sentences are used again. A single sentence has no second half, so its b always
    comes from another document. With short documents, more than half of the pairs are random.

    "sentence_order", ALBERT's (Lan et al. 2020, section 3.1): all pairs are consecutive segments of
    one document, and half of them are swapped. A single sentence is split at a random id; one of a
    single id gives no pair. ALBERT's released code pairs it with another document instead and calls
    it swapped, which makes more than half of the labels 1 and lets topics reveal them.

    Args:
        documents: the sentences of each document. "next_sentence" needs two documents with
            sentences.
        length: L, 5 or more.
        rng: draws targets, splits, replacements and swaps.
        pairs: "next_sentence" or "sentence_order".
        short_probability: share of the rows with a random target from 2 ids on; the others have the
            target L - 3.
        single_sentences: whether each half is a single sentence (Liu et al. 2019, section 4.2,
            SENTENCE-PAIR), without targets.
    """
    halves = _HALVES[pairs]
    numbers = [number for number, document in enumerate(documents) if len(document.ids)]
    usable = [documents[number] for number in numbers]
    room = length - 3
    rows: list[Row] = []
    for index, number in enumerate(numbers):
        offsets = usable[index].offsets
        first, count = 0, len(offsets) - 1
        while first < count:
            if single_sentences:
                target, end = 1, min(first + 2, count)
            else:
                target = room
                if rng.random() < short_probability:
                    target = int(rng.integers(2, room + 1))
                # The fewest sentences from `first` on that reach the target end at `end`.
                reach = np.searchsorted(offsets, offsets[first] + target, side="left")
                end = min(max(int(reach), first + 1), count)
            a, b, label, first = halves(usable, index, first, end, target, rng)
            if len(a) and len(b):
                a, b = _trimmed(a, b, room, rng)
                rows.append(Row([a, b], number, len(a) + 2, label))
    return rows


def pack_translations(documents: Sequence[TokenRows], length: int) -> list[Row]:
    """Packs each translation pair into a row (Conneau and Lample 2019, section 3.4).

    Pairs that do not fit are left out, as in XLM, because trimmed halves would not be translations
    of each other. Pairs with an empty half are left out as well.
    """
    rows = []
    for number, pair in enumerate(documents):
        if len(pair.offsets) == 3 and len(pair.ids) <= length - 3:
            middle = pair.offsets[1]
            rows.append(Row([pair.ids[:middle], pair.ids[middle:]], number, middle + 2))
    return rows


def _next_sentence(usable, index, first, end, target, rng):
    """Splits sentences `first` to `end - 1` of document `index`, about `target` ids, in two.

    Returns both halves, the label, and the next pair's first sentence.
    """
    ids, offsets = usable[index].ids, usable[index].offsets
    cut = first + 1 if end - first < 2 else int(rng.integers(first + 1, end))
    a = ids[offsets[first] : offsets[cut]]
    if end - first < 2 or rng.random() < 0.5:
        other = int(rng.integers(len(usable) - 1))
        b = _stretch(usable[other + (other >= index)], target - len(a), rng)
        return a, b, 1, cut  # the sentences that b replaces are used again
    return a, ids[offsets[cut] : offsets[end]], 0, end


def _sentence_order(usable, index, first, end, target, rng):
    """As `_next_sentence`, with both halves from one document."""
    ids, offsets = usable[index].ids, usable[index].offsets
    start, stop = int(offsets[first]), int(offsets[end])
    if end - first > 1:
        cut = int(offsets[rng.integers(first + 1, end)])
    else:
        cut = int(rng.integers(start + 1, max(stop, start + 2)))
    a, b = ids[start:cut], ids[cut:stop]
    return (b, a, 1, end) if rng.random() < 0.5 else (a, b, 0, end)


_HALVES = {"next_sentence": _next_sentence, "sentence_order": _sentence_order}


def _stretch(document: TokenRows, target: int, rng: np.random.Generator) -> np.ndarray:
    """Takes whole sentences from a random one on until they reach the target; at least one."""
    offsets = document.offsets
    start = int(rng.integers(len(offsets) - 1))
    reach = int(np.searchsorted(offsets, offsets[start] + target, side="left"))
    return document.ids[offsets[start] : offsets[min(max(reach, start + 1), len(offsets) - 1)]]


def _trimmed(
    a: np.ndarray, b: np.ndarray, room: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Trims two segments to `room` ids: removes ids at random ends of the longer one, then of both.

    The numbers are drawn in closed form, because a segment may be a book without full stops.
    """
    keep_a = min(len(a), max(room - len(b), (room + 1) // 2))
    kept = []
    for ids, keep in ((a, keep_a), (b, min(len(b), room - keep_a))):
        excess = len(ids) - keep
        front = int(rng.binomial(excess, 0.5)) if excess else 0
        kept.append(ids[front : front + keep])
    return kept[0], kept[1]


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """The layout of a row in a record: L ids, then the values of further columns.

    Attributes:
        sequence_length: L.
        columns: names of the further columns, of "boundary" (where the second half begins),
            "pair_label", "language" and "second_language".
        wide: whether a number takes four bytes instead of two.
    """

    sequence_length: int
    columns: tuple[str, ...]
    wide: bool

    @classmethod
    def of(cls, config: CorpusConfig, vocabulary_size: int) -> "RecordFormat":
        """Makes the format of a corpus, with two bytes per number if these suffice."""
        wanted = {
            "boundary": config.paired or config.has_translations,
            "pair_label": config.paired,
            "language": bool(config.languages),
            "second_language": config.has_translations,
        }
        columns = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        wide = max(config.sequence_length + 1, vocabulary_size) > 1 << 16
        return cls(config.sequence_length, columns, wide)

    @property
    def numbers(self) -> int:
        return self.sequence_length + len(self.columns)

    @property
    def file_bytes(self) -> int:
        """Bytes of a record in its file; TFRecord adds 16 bytes for length and checksums."""
        return self.numbers * (4 if self.wide else 2) + 16

    def encoded(self, rows: Rows, languages: np.ndarray) -> list[bytes]:
        """Encodes N rows, and the languages of their halves `(N, 2)`, as records."""
        known = {
            "boundary": rows.boundaries,
            "pair_label": rows.pair_label,
            "language": languages[:, 0],
            "second_language": languages[:, 1],
        }
        columns = [known[name][:, None] for name in self.columns]
        table = np.concatenate([rows.token_ids, *columns], axis=1)  # (N, numbers)
        return [row.tobytes() for row in table.astype("<i4" if self.wide else "<u2")]

    def table(self, records: tf.Tensor) -> tf.Tensor:
        """Decodes records, `(N,)` strings, to `(N, numbers)` uint16, or int32 if `wide`."""
        table = tf.io.decode_raw(records, tf.int32 if self.wide else tf.uint16)
        return tf.ensure_shape(table, [None, self.numbers])

    def features(self, table: tf.Tensor) -> dict[str, tf.Tensor]:
        """Makes a batch of the rows of a `table`, `(B, numbers)`.

        Returns:
            "token_ids" and "segment_ids" `(B, L)` int32, the latter 1 in the second half; for pairs
            "pair_label" `(B,)` int32; with several languages "language_ids" `(B, L)` int32; with
            translation pairs "position_ids" `(B, L)` int32, which restart at 0 in the second half
            (Conneau and Lample 2019, section 3.4).
        """
        table = tf.cast(table, tf.int32)
        token_ids, *columns = tf.split(table, [self.sequence_length, *[1] * len(self.columns)], 1)
        column = dict(zip(self.columns, columns, strict=True))  # each (B, 1)
        positions = tf.range(self.sequence_length)
        boundaries = column.get("boundary", self.sequence_length)
        second = (positions >= boundaries) & tf.ones_like(token_ids, tf.bool)  # (B, L)
        batch = {
            "token_ids": token_ids,
            "segment_ids": tf.cast(second & (token_ids != 0), tf.int32),
        }
        if "pair_label" in column:
            batch["pair_label"] = column["pair_label"][:, 0]
        if "language" in column:
            first = column["language"]
            batch["language_ids"] = tf.where(second, column.get("second_language", first), first)
        if "second_language" in column:
            batch["position_ids"] = positions - tf.where(second, boundaries, 0)
        return batch


_TOO_FEW = {
    "next_sentence": (
        "sentence pairs need four documents or more with text, two of them to hold out: "
        "half of the pairs take their second segment from another document of their split; "
        "give more documents, or separate them (text-paragraphs:, text-lines:)"
    ),
    "sentence_order": (
        "sentence pairs need two documents or more with text, one of them to hold out: "
        "give more documents, or separate them (text-paragraphs:)"
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class PackedBlock:
    """The rows of a block of documents.

    Attributes:
        documents: number of the block's documents.
        tokens: number of ids without padding.
        records: records of its N rows.
        repeated: `(N,)` bool, whether a row's document was read before.
        languages: `(N, 2)`, ids of the languages of a row's halves.
    """

    documents: int
    tokens: int
    records: list[bytes]
    repeated: np.ndarray
    languages: np.ndarray

    @property
    def counted(self) -> int:
        """Number of rows among which validation rows are chosen."""
        return int((~self.repeated).sum())

    def divided(
        self, config: CorpusConfig, counted: int, kept_rows: set[bytes]
    ) -> tuple[dict[tuple[int, ...], list[bytes]], list[bytes]]:
        """Divides the records into training records, by languages if these have own files, and
        validation records.

        Args:
            counted: `counted` of the blocks before this one.
            kept_rows: validation records so far; those of this block are added. If documents are
                repeated, these records are kept out of the training rows.
        """
        if config.paired:
            return {(): self.records}, []
        runs = (counted + np.cumsum(~self.repeated) - 1) // config.validation_run
        chosen = ~self.repeated & (runs % config.validation_every == 0)
        held_out = [self.records[i] for i in np.flatnonzero(chosen)]
        if config.repeats:
            kept_rows.update(held_out)
        apart = config.batch_alpha is not None
        train: dict[tuple[int, ...], list[bytes]] = {} if apart else {(): []}
        for i in np.flatnonzero(~chosen):
            if not (self.repeated[i] and self.records[i] in kept_rows):
                languages = tuple(self.languages[i].tolist()) if apart else ()
                train.setdefault(languages, []).append(self.records[i])
        return dict(sorted(train.items())), held_out


@dataclasses.dataclass(frozen=True, eq=False)
class Packer:
    """Tokenizes and packs documents. Results depend on the input only, so any process can do it."""

    config: CorpusConfig
    vocabulary: PieceVocabulary

    @property
    def record(self) -> RecordFormat:
        return RecordFormat.of(self.config, self.vocabulary.size)

    def tokenize(self, documents: Sequence[MixedDocument]) -> list[CorpusDocument]:
        return list(corpus_documents(documents, self.vocabulary, self.config))

    def pack(self, numbered: tuple[int, Sequence[CorpusDocument]]) -> PackedBlock:
        """Packs a block; its number seeds the choice of pairs."""
        number, block = numbered
        if not self.config.paired:
            return self._packed(block, running_rows(block, self.config), len(block))
        train = [document for document in block if not document.held_out]
        return self.pack_pairs(train, [number], len(block))

    def pack_pairs(
        self, documents: Sequence[CorpusDocument], seeds: list[int], count: int = 0
    ) -> PackedBlock:
        """Packs sentence pairs of the documents of one split.

        Args:
            seeds: numbers that seed the choice, together with the corpus's seed.
            count: number of documents, with those that are held out.

        Raises:
            UserError: there are too few documents.
        """
        pairs = self.config.pairs
        least = 2 if pairs == "next_sentence" else 1
        if sum(document.size > 0 for document in documents) < least:
            raise UserError(_TOO_FEW[pairs])
        rows = pack_pairs(
            [document.sentences for document in documents],
            self.config.sequence_length,
            np.random.default_rng([self.config.seed, *seeds]),
            pairs,
            single_sentences=self.config.row_packing == "sentence_pair",
        )
        return self._packed(documents, rows, count)

    def _packed(
        self, documents: Sequence[CorpusDocument], rows: Sequence[Row], count: int
    ) -> PackedBlock:
        vocabulary = self.vocabulary
        rows = Rows.of(rows, self.config.sequence_length, vocabulary.cls_id, vocabulary.sep_id)
        repeated = np.array([document.repeated for document in documents], bool)
        languages = np.array([document.languages for document in documents], int)
        languages = languages.reshape(-1, 2)[rows.owners]
        return PackedBlock(
            count,
            int((rows.token_ids != PAD).sum()),
            self.record.encoded(rows, languages),
            repeated[rows.owners],
            languages,
        )
