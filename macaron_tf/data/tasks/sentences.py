"""Sentences that belong together, pairs or triplets, to batches of a few static shapes."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import Batch, EqualRows, choose_lengths
from macaron_tf.data.sources.names import parse_source
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

_SPECIALS = 2  # [CLS] text [SEP]


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceSets:
    """A split of N examples of S sentences.

    Args:
        sentences: S lists of N texts: of pairs 2, of triplets anchors, positives and negatives.
        labels: (N,) int32 classes or float32 scores; None where the order of a triplet says all.
    """

    sentences: tuple[list[str], ...]
    labels: np.ndarray | None

    def __len__(self) -> int:
        """N."""
        return len(self.sentences[0])


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSentences:
    """Tokenized examples.

    Args:
        rows: N S rows of ids with their special ones; those of example n are n S to n S + S - 1.
        count: S.
        labels: (N,) or None.
        max_length: what no row exceeds.
        cut: number of sentences that were longer.
    """

    rows: TokenRows
    count: int
    labels: np.ndarray | None
    max_length: int
    cut: int

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64: the longest sentence of each example."""
        return self.rows.lengths.reshape(-1, self.count).max(axis=1)  # (N S,) -> (N, S) -> (N,)

    def padded(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Gathers examples (B,), of which -1 gives padding, into (B, S, L) int32."""
        own = examples[:, None] * self.count + np.arange(self.count)  # (B, S)
        own = np.where(examples[:, None] < 0, -1, own).reshape(-1)  # (B, S) -> (B S,)
        # (B S, L) -> (B, S, L)
        return self.rows.padded(own, length).reshape(-1, self.count, length)


def encode_sentences(
    vocabulary: PieceVocabulary, texts: Sequence[str], max_length: int
) -> tuple[TokenRows, int]:
    """Texts to rows `[CLS] text [SEP]`, as `encode_pairs` makes them; what is too long is cut.

    Args:
        vocabulary: an encoder vocabulary.
        texts: N texts; one that is empty gives a row of the two special ids.
        max_length: greatest length of a row, special ids included.

    Returns:
        The N rows, and how many of them were cut.

    Raises:
        UserError: `max_length` leaves no room for a token.
    """
    if max_length <= _SPECIALS:
        raise UserError(f"max_length is {max_length}: a sentence needs at least {_SPECIALS + 1}")
    rows = vocabulary.encode_rows(texts)
    kept = np.minimum(rows.lengths, max_length - _SPECIALS)  # (N,)
    ends = np.cumsum(kept + _SPECIALS)  # (N,)
    starts = ends - kept - _SPECIALS
    ids = np.empty(int(kept.sum()) + _SPECIALS * len(kept), rows.ids.dtype)
    ids[starts], ids[ends - 1] = vocabulary.cls_id, vocabulary.sep_id
    # Place of each kept id in its row, then in the rows it comes from and goes to.
    within = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    ids[np.repeat(starts + 1, kept) + within] = rows.ids[
        np.repeat(rows.offsets[:-1], kept) + within
    ]
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    return TokenRows(ids, offsets), int(np.sum(rows.lengths > kept))


def encode_sets(
    vocabulary: PieceVocabulary, sets: SentenceSets, max_length: int
) -> EncodedSentences:
    """Tokenizes a split, by `encode_sentences`.

    Args:
        vocabulary, max_length: as there.
        sets: a split.

    Raises:
        UserError: as there; or there is no example.
    """
    if not len(sets):
        raise UserError("no example to encode: take a larger split")
    texts = [text for example in zip(*sets.sentences, strict=True) for text in example]
    rows, cut = encode_sentences(vocabulary, texts, max_length)
    return EncodedSentences(rows, len(sets.sentences), sets.labels, max_length, cut)


class SentenceData:
    """A tokenized split, dealt into batches; the same seed and step always give the same batch.

    Every batch has `batch_size` examples of about one length, all of their sentences padded to
    it: an epoch is ceil(N / batch_size) steps, and the one batch that is not full is filled up with
    examples of weight 0.

    Args:
        encoded: the examples.
        batch_size: B, examples of a batch.
        shapes: greatest number of static lengths.
        length_multiple: lengths are multiples of this, or `max_length` itself.
    """

    def __init__(
        self,
        encoded: EncodedSentences,
        batch_size: int,
        *,
        shapes: int = 4,
        length_multiple: int = 8,
    ):
        self.encoded = encoded
        self.batch_size = batch_size
        self.lengths = encoded.lengths
        best = choose_lengths(self.lengths, shapes, length_multiple)
        # A table of 100 learned positions has none for a batch of 104.
        self.buckets = EqualRows([min(n, encoded.max_length) for n in best], batch_size)
        self.steps_per_epoch = self.buckets.steps(self.lengths)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.lengths)

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(B, S, L) of every batch that can occur, shortest first."""
        return tuple((rows, self.encoded.count, length) for rows, length in self.buckets.shapes)

    def fingerprint(self) -> str:
        """SHA-256 (hex) over ids and labels: what a model is trained on, to the id."""
        digest = hashlib.sha256()
        rows = self.encoded.rows
        for array in (rows.offsets, rows.ids, self.encoded.labels):
            if array is not None:
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def summary(self) -> str:
        """One line for the log: examples, steps, shapes, real tokens in a padded one."""
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        plan = self.buckets.plan(self.lengths, np.random.default_rng(0))
        padded = sum(len(batch.rows) * batch.length for batch in plan) * self.encoded.count
        return (
            f"{len(self):,} examples, {self.steps_per_epoch:,} steps an epoch, "
            f"{self.encoded.rows.lengths.sum() / padded:.1%} of the padded tokens real, "
            f"shapes {shapes}"
        )

    def batches(self, seed: int = 0, start_step: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches from a global step on, for ever; the skipped ones cost nothing.

        Args:
            seed: decides the order, together with the epoch.
            start_step: number of the first batch, counted from the start of epoch 0.

        Yields:
            {"token_ids": (B, S, L) int32, "weight": (B,) float32, 0 in rows of padding, and, where
            there are labels, "label": (B,) int32 or float32}.
        """
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            plan = self.buckets.plan(self.lengths, np.random.default_rng([seed, epoch]))
            for batch in plan[offset:]:
                yield self._gather(batch)
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0) -> tf.data.Dataset:
        """`batches` as a tf.data.Dataset, prefetched.

        Args:
            seed, start_step: as for `batches`.

        Returns:
            An endless dataset; L is None in its specification where there are several lengths.
        """
        length = self.buckets.lengths[0] if len(self.buckets.lengths) == 1 else None
        size, labels = self.batch_size, self.encoded.labels
        signature = {
            "token_ids": tf.TensorSpec([size, self.encoded.count, length], tf.int32, "token_ids"),
            "weight": tf.TensorSpec([size], tf.float32, "weight"),
        }
        if labels is not None:
            signature["label"] = tf.TensorSpec([size], labels.dtype, "label")
        dataset = tf.data.Dataset.from_generator(
            lambda: self.batches(seed, start_step), output_signature=signature
        )
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return dataset.apply(endless).prefetch(tf.data.AUTOTUNE)

    def _gather(self, batch: Batch) -> dict[str, np.ndarray]:
        rows, labels = batch.rows, self.encoded.labels
        gathered = {
            "token_ids": self.encoded.padded(rows, batch.length),  # (B, S, L)
            "weight": (rows >= 0).astype(np.float32),
        }
        if labels is not None:
            gathered["label"] = np.where(rows < 0, labels.dtype.type(0), labels[rows])
        return gathered


COLUMNS = ("anchor", "positive", "negative")


def read_triplets(source: str, split: str) -> SentenceSets:
    """Reads a split of triplets.

    Args:
        source: `tsv:FILE`, plain or `.gz`: a header that names the three columns `anchor`,
            `positive` and `negative` among others, tabs between, no quoting. `{split}` in the name
            stands for the split; without it there are "train" and, equally, "all".
        split: the split.

    Returns:
        The triplets, without labels.

    Raises:
        UserError: no such source or file, a column that is missing, a line of too few or too many
            columns, an empty text; names the file, the line and the column.
    """
    path = parse_source(source, ("tsv:FILE",), "triplets").path(split)
    lines = lines_of(path)
    header = next(lines, "").split("\t")
    wrong = [column for column in COLUMNS if header.count(column) != 1]
    if wrong:
        raise UserError(
            f"{path}, line 1: {header.count(wrong[0]) or 'no'} column named {wrong[0]!r}; the "
            f"header must name {', '.join(COLUMNS)} once each, with tabs between"
        )
    places = [header.index(column) for column in COLUMNS]
    sentences = tuple([] for _ in COLUMNS)
    for number, line in enumerate(lines, start=2):
        row = line.split("\t")
        if len(row) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(row)} columns, not the header's {len(header)}; "
                "separate columns by one tab, and take tabs and line ends out of texts"
            )
        for column, place, texts in zip(COLUMNS, places, sentences, strict=True):
            if not row[place].strip():
                raise UserError(
                    f"{path}, line {number}: the text in column {column!r} is empty; "
                    "fill it in or take the line out"
                )
            texts.append(row[place])
    if not sentences[0]:
        raise UserError(f"{path} holds no triplet: give a header and a line for each")
    return SentenceSets(sentences, None)
