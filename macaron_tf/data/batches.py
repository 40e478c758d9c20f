"""Which static shapes a corpus is batched in, and which rows go into which batch."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.tasks.encoding import CLS_SEGMENT
from macaron_tf.errors import UserError
from macaron_tf.text.token_rows import TokenRows


class Batch(NamedTuple):
    """The rows of a batch and the length they are padded to.

    Args:
        rows: (B,) int64 row numbers; -1 stands for a row of padding.
        length: L.
    """

    rows: np.ndarray
    length: int


class Buckets:
    """A handful of lengths; each with as many rows as the token budget allows.

    Args:
        lengths: lengths of the buckets, ascending.
        max_tokens: budget of a batch: its rows times its length, on one side (fairseq counts so).
        row_multiple: rows are rounded down to a multiple of this where there are that many.

    Raises:
        UserError: the longest bucket does not fit into the budget.
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, row_multiple: int = 8):
        self.lengths = tuple(sorted({int(length) for length in lengths}))
        if max_tokens < self.lengths[-1]:
            raise UserError(
                f"a batch of {max_tokens} tokens cannot hold a row of {self.lengths[-1]}: raise "
                "the tokens of a batch or lower the greatest number of tokens of a line"
            )
        rows = [max_tokens // length for length in self.lengths]
        self.rows = tuple(n - n % row_multiple if n >= row_multiple else n for n in rows)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(B, L) of each bucket."""
        return tuple(zip(self.rows, self.lengths, strict=True))

    def of(self, lengths: np.ndarray) -> np.ndarray:
        """The bucket of each row.

        Args:
            lengths: (rows,) lengths, none above the longest bucket.

        Returns:
            (rows,) int64 numbers of buckets.
        """
        return np.searchsorted(np.asarray(self.lengths), lengths)

    def steps(self, lengths: np.ndarray) -> int:
        """Number of batches that `plan` makes.

        Args:
            lengths: (rows,) lengths.

        Returns:
            The number; it depends on no seed.
        """
        counts = np.bincount(self.of(lengths), minlength=len(self.lengths))
        steps, carried = 0, 0
        for count, rows in zip(counts.tolist(), self.rows, strict=True):
            full, carried = divmod(count + carried, rows)
            steps += full
        return steps + (carried > 0)

    def plan(self, lengths: np.ndarray, rng: np.random.Generator | None) -> list[Batch]:
        """Deals every row into exactly one batch.

        The rows that do not fill a batch of their bucket move up into the next longer one, so
        that an epoch holds one partial batch, not one for each bucket; that one is filled up with
        rows of padding.

        Args:
            lengths: (rows,) lengths.
            rng: shuffles rows within their bucket, and batches; None = ascending lengths.

        Returns:
            The batches of an epoch.
        """
        lengths = np.asarray(lengths)
        order = rng.permutation(len(lengths)) if rng else np.argsort(lengths, kind="stable")
        batches = list(self._deal(order, lengths, rng))
        if rng is not None:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches

    def _deal(self, order, lengths, rng) -> Iterator[Batch]:
        # A stable sort by bucket keeps the shuffled order within each bucket.
        buckets = self.of(lengths[order])
        by_bucket = order[np.argsort(buckets, kind="stable")]
        ends = np.cumsum(np.bincount(buckets, minlength=len(self.lengths)))
        carried = order[:0]
        for members, size, length in zip(
            np.split(by_bucket, ends[:-1]), self.rows, self.lengths, strict=True
        ):
            members = np.concatenate([carried, members])
            if rng is not None and len(carried):
                # Without this the shorter rows that moved up would share one batch.
                members = rng.permutation(members)
            full = len(members) // size * size
            for start in range(0, full, size):
                yield Batch(members[start : start + size], length)
            carried = members[full:]
        if len(carried):
            # They may all be short: the smallest bucket that holds them has room enough.
            bucket = int(self.of(lengths[carried].max()))
            filling = np.full(self.rows[bucket] - len(carried), -1, carried.dtype)
            yield Batch(np.concatenate([carried, filling]), self.lengths[bucket])


class EqualRows(Buckets):
    """Buckets of equal numbers of rows: the papers' batch size counts examples, not tokens.

    Args:
        lengths: lengths of the buckets.
        rows: of each batch.
    """

    def __init__(self, lengths: Sequence[int], rows: int):
        super().__init__(lengths, max_tokens=rows * max(lengths))
        self.rows = (rows,) * len(self.lengths)


def choose_lengths(lengths: np.ndarray, count: int, multiple: int) -> list[int]:
    """The lengths that waste the least padding, by dynamic programming over their histogram.

    Padding source and target each to a length of its own was tried on Multi30k: 8 pairs of lengths
    give 0.878 real tokens in a padded one, 8 single lengths 0.876; not worth the trouble.

    Args:
        lengths: (rows,) the greater of a pair's two lengths; at least one row.
        count: greatest number of lengths.
        multiple: every length is a multiple of it.

    Returns:
        The lengths, ascending; the last one holds the longest row.
    """
    cells = -(-np.asarray(lengths) // multiple)
    histogram = np.bincount(cells)
    below = np.cumsum(histogram).astype(np.float64)  # rows that a cell holds
    cost = np.arange(len(below), dtype=np.float64)  # of a row, in multiples
    best = below * cost  # best[i]: cost of the rows up to cell i with one length, then two, ...
    previous = []
    for _ in range(min(count, len(below)) - 1):
        # total[i, j]: the longest of the lengths is cell i, the next shorter one cell j <= i.
        total = best[None, :] + (below[:, None] - below[None, :]) * cost[:, None]
        total[np.triu_indices(len(below), 1)] = np.inf
        previous.append(total.argmin(axis=1))
        best = total.min(axis=1)
    cell = len(below) - 1
    chosen = [cell]
    for step in reversed(previous):
        cell = int(step[cell])
        chosen.append(cell)
    return sorted({cell * multiple for cell in chosen if below[cell] > 0})


# Passes parts on, each given with its size, and tells somebody: as `macaron_tf.io.progress.track`.
Progress = Callable[[Iterator[tuple[int, slice]], int], Iterator[slice]]


def in_parts(total: int, size: int, progress: Progress | None = None) -> Iterator[slice]:
    """Cuts examples into parts that are tokenized one after the other.

    Args:
        total: number of examples.
        size: greatest number of a part.
        progress: is given pairs of a part's size and the part, and the total.

    Yields:
        The parts.
    """
    parts = (
        (min(size, total - begin), slice(begin, begin + size)) for begin in range(0, total, size)
    )
    yield from progress(parts, total) if progress else (part for _, part in parts)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """Tokenized examples, N of R rows each; R is 1 but where choices are compared.

    Args:
        rows: ids with their special ones, without padding; those of example n are n R to
            n R + R - 1.
        boundaries: (N R,) int64: where segment 1 begins; the row's length in a row of one text.
        labels: (N,) int32 classes or float32 scores; (N, 2) int32 positions; `TokenRows` of a
            label for each id; or None.
        max_length: what no row exceeds.
        count: R.
        cls_last: whether a row's last id is [CLS], of segment 2.
    """

    rows: TokenRows
    boundaries: np.ndarray
    labels: np.ndarray | TokenRows | None
    max_length: int
    count: int = dataclasses.field(default=1, kw_only=True)
    cls_last: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64: the longest row of each example."""
        return self.rows.lengths.reshape(-1, self.count).max(axis=1)  # (N R,) -> (N, R) -> (N,)

    def row_shape(self, size: int, length: int | None) -> list[int | None]:
        """(B, L), or (B, R, L) of several rows an example."""
        return [size, length] if self.count == 1 else [size, self.count, length]

    def padded(self, examples: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and segments of examples (B,), of which -1 gives padding, as `row_shape` says."""
        own = examples[:, None] * self.count + np.arange(self.count)  # (B, R)
        own = np.where(examples[:, None] < 0, -1, own).reshape(-1)  # (B, R) -> (B R,)
        token_ids = self.rows.padded(own, length)  # (B R, L)
        second = np.arange(length) >= self.boundaries[own][:, None]  # (B R, L)
        segment_ids = (second & (token_ids != 0)).astype(np.int32)
        if self.cls_last:
            ends = (token_ids != 0).sum(axis=1, keepdims=True)  # (B R, 1)
            segment_ids[np.arange(length) == ends - 1] = CLS_SEGMENT
        # (B R, L) -> (B, L) or (B, R, L)
        shape = self.row_shape(len(examples), length)
        return token_ids.reshape(shape), segment_ids.reshape(shape)


class ExampleBatches:
    """Tokenized rows, dealt into batches; the same seed and step always give the same batch.

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
        self.row_lengths = encoded.lengths
        best = choose_lengths(self.row_lengths, shapes, length_multiple)
        # A table of 100 learned positions has none for a batch of 104.
        best = [min(length, encoded.max_length) for length in best]
        if lengths is not None:
            best = [*lengths, *([best[-1]] if best[-1] > max(lengths) else [])]
        self.buckets = EqualRows(best, batch_size)
        self.steps_per_epoch = self.buckets.steps(self.row_lengths)

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
        rows, labels = self.encoded.rows, self.encoded.labels
        labels = labels.ids if isinstance(labels, TokenRows) else labels
        for array in (rows.offsets, rows.ids, self.encoded.boundaries, labels):
            if array is not None:
                digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    def summary(self) -> str:
        """One line for the log: rows, steps, shapes, real tokens in a padded one."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        plan = self.buckets.plan(self.row_lengths, np.random.default_rng(0))
        padded = sum(len(batch.rows) * batch.length for batch in plan) * self.encoded.count
        real = self.encoded.rows.lengths.sum() / padded
        return (
            f"{len(self):,} examples, {self.steps_per_epoch:,} steps an epoch, "
            f"{real:.1%} of the padded tokens real, shapes {shapes}"
        )

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """The batches from a global step on; the skipped ones cost nothing.

        Args:
            seed: decides the order, together with the epoch.
            start_step: number of the first batch, counted from the start of epoch 0.
            repeat: go on with the next epochs for ever, or end with the epoch begun.

        Yields:
            {"token_ids" and "segment_ids": (B, L) or (B, R, L) int32, "label": as the encoded
            ones', (B,) int32 or float32, (B, 2) int32 or (B, L) int32, and "weight": (B,)
            float32; label and weight are 0 in rows of padding}.

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
        """Every row once, in ascending order of length.

        Returns:
            Dataset of what `batches` yields (without "label" where the examples have none) and
            "index" (B,) int32, a row's place among the rows, -1 in rows of padding.
        """

        def batches() -> Iterator[dict]:
            for batch in self.buckets.plan(self.row_lengths, None):
                yield {**self._gather(batch), "index": batch.rows.astype(np.int32)}

        return self._dataset(batches, self.steps_per_epoch, index=True)

    def labels(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Labels of some rows, as a batch holds them.

        Args:
            rows: (B,) int64 numbers of rows, -1 for one of padding.
            length: L, of labels of each id.

        Returns:
            (B,), (B, 2) or (B, L); 0 for padding.
        """
        labels = self.encoded.labels
        if isinstance(labels, TokenRows):
            return labels.padded(rows, length)
        found = labels[rows]
        found[rows < 0] = 0
        return found

    def _require_labels(self) -> None:
        if self.encoded.labels is None:
            raise UserError(
                "these examples have no labels to learn from: train on a split that has them"
            )

    def _gather(self, batch: Batch) -> dict[str, np.ndarray]:
        rows = batch.rows
        token_ids, segment_ids = self.encoded.padded(rows, batch.length)
        gathered = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "weight": (rows >= 0).astype(np.float32),
        }
        if self.encoded.labels is not None:
            gathered["label"] = self.labels(rows, batch.length)
        return gathered

    def _dataset(self, generator, cardinality: int, index: bool = False) -> tf.data.Dataset:
        size, labels = self.batch_size, self.encoded.labels
        length = self.lengths[0] if len(self.lengths) == 1 else None
        shape = self.encoded.row_shape(size, length)
        signature = {
            "token_ids": tf.TensorSpec(shape, tf.int32, name="token_ids"),
            "segment_ids": tf.TensorSpec(shape, tf.int32, name="segment_ids"),
            "weight": tf.TensorSpec([size], tf.float32, name="weight"),
        }
        if isinstance(labels, TokenRows):
            signature["label"] = tf.TensorSpec([size, length], tf.int32, name="label")
        elif labels is not None:
            shape = [size, *labels.shape[1:]]
            signature["label"] = tf.TensorSpec(shape, labels.dtype, name="label")
        if index:
            signature["index"] = tf.TensorSpec([size], tf.int32, name="index")
        dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
        return dataset.prefetch(tf.data.AUTOTUNE)
