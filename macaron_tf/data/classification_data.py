"""From a task's examples to batches of a few static shapes."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.bucketing import Batch, Buckets, choose_lengths
from macaron_tf.data.cache import TokenRows
from macaron_tf.data.pair_encoding import encode_pairs
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.task_data import Examples
from macaron_tf.errors import UserError

_CHUNK = 1024  # texts tokenized at once: at 512 ids a row, 2 MB of ids


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """Tokenized examples, N rows.

    Args:
        rows: ids with their special ones, without padding.
        boundaries: (N,) int64: where segment 1 begins; the row's length in a row of one text.
        labels: (N,) int32 classes or float32 scores, or None.
        max_length: what no row exceeds.
    """

    rows: TokenRows
    boundaries: np.ndarray
    labels: np.ndarray | None
    max_length: int


def encode_examples(
    vocabulary: PieceVocabulary, examples: Examples, max_length: int
) -> EncodedExamples:
    """Tokenizes a split once, by `encode_pairs`.

    Args:
        vocabulary: an encoder vocabulary.
        examples: a split.
        max_length: greatest length of a row, special ids included.

    Returns:
        The rows, in the examples' order.

    Raises:
        UserError: no example, or `max_length` is too small.
    """
    if not len(examples):
        raise UserError("no example to encode: take a larger split")
    rows, boundaries = [], []
    for start in range(0, len(examples), _CHUNK):
        first, second = (
            None if texts is None else tf.constant(texts[start : start + _CHUNK])
            for texts in (examples.first, examples.second)
        )
        encoded = encode_pairs(vocabulary, first, second, max_length)
        token_ids = encoded["token_ids"].numpy()  # (B, L)
        lengths = (token_ids != 0).sum(axis=1)  # (B,): PAD is 0 and stands only at the end
        boundaries.append(lengths - encoded["segment_ids"].numpy().sum(axis=1))
        rows += [row[:length] for row, length in zip(token_ids, lengths, strict=True)]
    return EncodedExamples(
        TokenRows.from_lists(rows, vocabulary.size),
        np.concatenate(boundaries).astype(np.int64),
        examples.labels,
        max_length,
    )


class ClassificationData:
    """A tokenized split, dealt into batches; the same seed and step always give the same batch.

    Every batch has `batch_size` rows of about one length: an epoch is ceil(N / batch_size) steps,
    and the one batch that is not full is filled up with rows of weight 0.

    Args:
        encoded: the rows; other batch sizes may share them.
        batch_size: B, rows of a batch.
        shapes: greatest number of static lengths.
        length_multiple: lengths are multiples of this, or `max_length` itself.
        lengths: the static lengths, instead of the best ones for these rows; give a training
            set's `lengths` to its validation set to share its shapes. A longer row adds one.

    Raises:
        UserError: a number below 1.
    """

    def __init__(
        self,
        encoded: EncodedExamples,
        batch_size: int,
        *,
        shapes: int = 4,
        length_multiple: int = 8,
        lengths: Sequence[int] | None = None,
    ):
        sizes = {"batch_size": batch_size, "shapes": shapes, "length_multiple": length_multiple}
        for name, value in sizes.items():
            if value < 1:
                raise UserError(f"{name} is {value}: it must be 1 or more")
        self.encoded = encoded
        self.batch_size = batch_size
        self.row_lengths = encoded.rows.lengths
        best = choose_lengths(self.row_lengths, shapes, length_multiple)
        # A table of 100 learned positions has none for a batch of 104.
        best = [min(length, encoded.max_length) for length in best]
        if lengths is not None:
            best = [*lengths, *([best[-1]] if best[-1] > max(lengths) else [])]
        self.buckets = _EqualRows(best, batch_size)
        self.steps_per_epoch = self.buckets.steps(self.row_lengths)

    @classmethod
    def from_examples(
        cls,
        examples: Examples,
        vocabulary: PieceVocabulary,
        max_length: int,
        batch_size: int,
        **options,
    ) -> "ClassificationData":
        """Tokenizes and batches a split.

        Args:
            examples, vocabulary, max_length: as for `encode_examples`.
            batch_size, options: as for the class.

        Returns:
            The data.

        Raises:
            UserError: as those two.
        """
        return cls(encode_examples(vocabulary, examples, max_length), batch_size, **options)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.row_lengths)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(B, L) of every batch that can occur, shortest first."""
        return self.buckets.shapes

    @property
    def lengths(self) -> tuple[int, ...]:
        """The static lengths, ascending."""
        return self.buckets.lengths

    def fingerprint(self) -> str:
        """SHA-256 (hex) over ids, boundaries and labels: what a model is trained on, to the id."""
        digest = hashlib.sha256()
        rows = self.encoded.rows
        for array in (rows.offsets, rows.ids, self.encoded.boundaries, self.encoded.labels):
            if array is not None:
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def summary(self) -> str:
        """One line for the log: examples, steps, shapes, real tokens in a padded one."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        plan = self.buckets.plan(self.row_lengths, np.random.default_rng(0))
        padded = sum(len(batch.rows) * batch.length for batch in plan)
        return (
            f"{len(self):,} examples, {self.steps_per_epoch:,} steps an epoch, "
            f"{self.row_lengths.sum() / padded:.1%} of the padded tokens real, shapes {shapes}"
        )

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """The batches from a global step on; the skipped ones cost nothing.

        Args:
            seed: decides the order, together with the epoch.
            start_step: number of the first batch, counted from the start of epoch 0.
            repeat: go on with the next epochs for ever, or end with the epoch begun.

        Yields:
            {"token_ids": (B, L) int32, "segment_ids": (B, L) int32, "label": (B,) int32 or
            float32, "weight": (B,) float32, 0 in rows of padding}.

        Raises:
            UserError: the examples have no labels.
        """
        self._require_labels()
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            plan = self.buckets.plan(self.row_lengths, np.random.default_rng([seed, epoch]))
            for batch in plan[offset:]:
                yield self._gather(batch)
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        """`batches` as a tf.data.Dataset, prefetched.

        Args:
            seed, start_step, repeat: as for `batches`.

        Returns:
            Dataset of what `batches` yields; L is None in its specification where there are
            several lengths, its cardinality is known.

        Raises:
            UserError: the examples have no labels.
        """
        self._require_labels()
        left = self.steps_per_epoch - start_step % self.steps_per_epoch
        return self._dataset(
            lambda: self.batches(seed, start_step, repeat),
            tf.data.INFINITE_CARDINALITY if repeat else left,
        )

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Every example once, in ascending order of length.

        Returns:
            Dataset of what `batches` yields (without "label" where the examples have none) and
            "index" (B,) int32, an example's place among the examples, -1 in rows of padding.
        """

        def batches() -> Iterator[dict]:
            for batch in self.buckets.plan(self.row_lengths, None):
                yield {**self._gather(batch), "index": batch.rows.astype(np.int32)}

        return self._dataset(batches, self.steps_per_epoch, index=True)

    def _require_labels(self) -> None:
        if self.encoded.labels is None:
            raise UserError(
                "these examples have no labels to learn from: train on a split that has them"
            )

    def _gather(self, batch: Batch) -> dict[str, np.ndarray]:
        rows = batch.rows
        token_ids = self.encoded.rows.padded(rows, batch.length)  # (B, L)
        columns = np.arange(batch.length)  # (L,)
        second = columns >= self.encoded.boundaries[rows][:, None]  # (B, L)
        gathered = {
            "token_ids": token_ids,
            "segment_ids": (second & (token_ids != 0)).astype(np.int32),
            "weight": (rows >= 0).astype(np.float32),
        }
        labels = self.encoded.labels
        if labels is not None:
            gathered["label"] = np.where(rows < 0, labels.dtype.type(0), labels[rows])
        return gathered

    def _dataset(self, generator, cardinality: int, index: bool = False) -> tf.data.Dataset:
        size, labels = self.batch_size, self.encoded.labels
        length = self.lengths[0] if len(self.lengths) == 1 else None
        signature = {
            "token_ids": tf.TensorSpec([size, length], tf.int32, name="token_ids"),
            "segment_ids": tf.TensorSpec([size, length], tf.int32, name="segment_ids"),
            "weight": tf.TensorSpec([size], tf.float32, name="weight"),
        }
        if labels is not None:
            signature["label"] = tf.TensorSpec([size], labels.dtype, name="label")
        if index:
            signature["index"] = tf.TensorSpec([size], tf.int32, name="index")
        dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
        return dataset.prefetch(tf.data.AUTOTUNE)


class _EqualRows(Buckets):
    """Buckets of equal numbers of rows: the papers' batch size counts examples, not tokens."""

    def __init__(self, lengths: Sequence[int], rows: int):
        super().__init__(lengths, max_tokens=rows * max(lengths))
        self.rows = (rows,) * len(self.lengths)
