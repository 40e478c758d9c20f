"""Batches of arrays and of token rows in a few static shapes. A run can resume at any step."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.data.sampler import (
    Batch,
    Draw,
    Shapes,
    choose_lengths,
    in_parts,
    plan_batches,
    plan_pools,
)
from macaron_tf.special import CLS_SEGMENT, Special
from macaron_tf.text.token_rows import TokenRows, fingerprint


class Batches(abc.ABC):
    """Base class for batch sources. The seed and the step determine each batch.

    The seed and the epoch index seed the NumPy generator that shuffles an epoch. A run that resumes
    in the middle of an epoch plans the whole epoch again, but does not gather the batches before
    its start step, so that it resumes quickly. NumPy gathers each batch from arrays, which may be
    memory-mapped, and tf.data prefetches the batches.

    Attributes:
        element_spec: dtype and shape of each array in a batch; a dimension that varies is `None`.
    """

    steps_per_epoch: int
    element_spec: Mapping[str, tf.TensorSpec]

    @abc.abstractmethod
    def plan(self, rng: np.random.Generator | None) -> Sequence[Batch]:
        """Returns an epoch's batches of example indices; without `rng`, all in a fixed order."""

    @abc.abstractmethod
    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns a dict mapping name to array for the examples of a batch."""

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """Yields batches as dicts of NumPy arrays, forever or to the end of the epoch."""
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            yield from map(self.gather, self.plan(np.random.default_rng([seed, epoch]))[offset:])
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        """Returns a prefetched dataset of the batches that the method `batches` yields."""
        remaining_steps = self.steps_per_epoch - start_step % self.steps_per_epoch
        steps = tf.data.INFINITE_CARDINALITY if repeat else remaining_steps
        make_batches = functools.partial(self.batches, seed, start_step, repeat)
        return _generator_dataset(make_batches, self.element_spec, steps)

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns a dataset that has every example once, in the order of `plan(None)`."""
        plan = self.plan(None)
        return _generator_dataset(lambda: map(self.gather, plan), self.element_spec, len(plan))


def prefetch(dataset: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Returns a dataset that prefetches its batches, with tf.data's autotuning switched off.

    At the end of an iterator, tf.data waits for its autotuning thread, which may notice the end
    late. With autotuning, 55 of 250 evaluations of 0.7 s took half a second longer, and longer
    evaluations took up to a minute longer. Without autotuning, prefetch buffers still grow, and
    parallel maps still use all processors.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if steps != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _generator_dataset(make: Callable[[], Iterator], spec, steps: int) -> tf.data.Dataset:
    return prefetch(tf.data.Dataset.from_generator(make, output_signature=spec), steps)


class ArrayBatches(Batches):
    """Batches of examples that a function gathers by index, such as images or windows of a text.

    A shuffled epoch has only batches of B examples. The remaining examples are left out. An epoch
    that is not shuffled has every example, in order, and its last batch may be smaller.

    Args:
        size: number of examples per batch, B. If `size` exceeds N, B is N.
        shapes: dict mapping the name of each array to a tuple (dtype, shape). The shape includes
            the batch dimension, which is `None` if a batch may be smaller than B.
        lengths: `(N,)` example lengths. The batches of a shuffled epoch consist of examples of
            similar length. `None` means that length does not matter.
    """

    def __init__(
        self,
        count: int,
        size: int,
        gather: Callable[[np.ndarray], dict[str, np.ndarray]],
        shapes: Mapping[str, tuple],
        lengths: Sequence[int] | None = None,
        shuffle: bool = True,
    ):
        self.count, self.size, self.shuffle = count, min(size, count), shuffle
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.steps_per_epoch = count // self.size if shuffle else -(-count // self.size)
        specs = {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in shapes.items()}
        self._gather, self.element_spec = gather, specs

    def plan(self, rng: np.random.Generator | None) -> list[Batch]:
        if rng is None or not self.shuffle:
            indices = np.arange(self.count)
            return [Batch(indices[part]) for part in in_parts(self.count, self.size)]
        return plan_pools(self.count, self.size, rng, self.lengths)

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        return self._gather(batch.rows)


def longest_rows(rows: Sequence[TokenRows], count: int) -> np.ndarray:
    """Returns the length of the longest row of each example, `(count,)` int32."""
    max_lengths = np.zeros(count, np.int32)
    for part in rows:
        lengths = part.lengths.reshape(count, -1).max(axis=1)  # (N, R) -> (N,)
        np.maximum(max_lengths, lengths.astype(np.int32, copy=False), out=max_lengths)
    return max_lengths


class BucketBatches(Batches):
    """Batches of token rows with similar lengths, padded to the length of a bucket.

    Without `draw`, an epoch has every example once, and at most one batch contains rows of padding.
    With `draw`, a shuffled epoch has the same number of batches. To this end, some of the drawn
    examples may be left out, or further examples may be drawn.

    Args:
        other_arrays: further arrays that affect training, such as labels. `fingerprint` covers
            these arrays. `None` entries are ignored.
        indices: `(N,)` integers that identify the examples in `evaluation_dataset`; `None` means 0
            to N - 1.
        draw: function from a NumPy generator to the example indices `(N,)` of a shuffled epoch, as
            `MixingConfig.make_draw` returns; `None` means each example once.
    """

    def __init__(
        self,
        rows: Sequence[TokenRows],
        count: int,
        shapes: Shapes,
        *,
        other_arrays: Sequence[np.ndarray | None] = (),
        indices: np.ndarray | None = None,
        draw: Draw | None = None,
    ):
        self._rows, self._other_arrays = rows, other_arrays
        self._count, self._indices, self._draw = count, indices, draw
        # All padded lengths L and all batch shapes (B, L) that can occur, in ascending order of L.
        self.shapes, self.lengths = shapes, [length for _, length in shapes]
        self.steps_per_epoch = len(plan_batches(shapes, self.row_lengths, None))

    def __len__(self) -> int:
        return self._count

    @property
    def row_lengths(self) -> np.ndarray:
        """Length of the longest row of each example, `(N,)` int32.

        The array is computed on each access, because keeping the array would take 18 MB for 4.5
        million pairs.
        """
        return longest_rows(self._rows, self._count)

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        # Gather one batch of padding per bucket. A dimension that differs between them is None.
        batches = [self.gather(Batch(np.full(size, -1), length)) for size, length in self.shapes]
        spec = {}
        for name, array in batches[0].items():
            shapes = zip(*(batch[name].shape for batch in batches), strict=True)
            shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]
            spec[name] = tf.TensorSpec(shape, array.dtype, name)
        return spec

    def plan(self, rng: np.random.Generator | None) -> Sequence[Batch]:
        if rng is None or self._draw is None:
            return plan_batches(self.shapes, self.row_lengths, rng)
        # Drawn examples may fill more or fewer batches, but every epoch needs `steps_per_epoch`.
        lengths, batches = self.row_lengths, []
        while len(batches) < self.steps_per_epoch:
            drawn = np.append(self._draw(rng), -1)  # drawn[-1] == -1 keeps rows of padding
            planned = plan_batches(self.shapes, lengths[drawn[:-1]], rng)
            batches += [Batch(drawn[rows], length) for rows, length in planned]
        return batches[: self.steps_per_epoch]

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns a dataset of every example once, by length, with "index" `(B,)`, -1: padding."""

        def batches() -> Iterator[dict]:
            for batch in self.plan(None):
                index = batch.rows if self._indices is None else self._indices[batch.rows]
                index = np.where(batch.rows < 0, -1, index).astype(np.int32)
                yield {**self.gather(batch), "index": index}

        spec = self.element_spec
        spec["index"] = tf.TensorSpec(next(iter(spec.values())).shape[:1], tf.int32, "index")
        return _generator_dataset(batches, spec, self.steps_per_epoch)

    def fingerprint(self) -> str:
        """Computes the SHA-256 (hex) of token ids, row offsets and the arrays in `other_arrays`."""
        rows = [array for part in self._rows for array in part.arrays()]
        return fingerprint([*rows, *(array for array in self._other_arrays if array is not None)])

    def summary(self) -> str:
        """Returns example count, steps per epoch and batch shapes in one line."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        return f"{len(self):,} examples, {self.steps_per_epoch:,} steps per epoch, shapes {shapes}"


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """N tokenized examples of R rows each.

    R is the number of choices in multiple choice, and the number of sentences per example for
    sentence encoders, such as 2 for pairs. Otherwise R is 1.

    Attributes:
        rows: token ids without padding, including special ids if the model uses any. The R rows of
            example n begin at row index n R.
        boundaries: `(N R,)` int64, first position of segment 1 in each row. In a row with a single
            text, the boundary is the row length, without the last [CLS] if `cls_last` is True.
            `None` means that batches have no "segment_ids".
        labels: `(N,)` int32 classes or float32 scores; `(N, 2)` int32 first and last position of
            an answer; or `TokenRows` with one label per token. `None` means that the examples have
            no labels.
        cls_last: whether rows end with [CLS], which is then segment 2, as in XLNet.
        language_id: language id of all texts. Unless the id is 0, batches also have "language_ids".
        characters: `(words, C)` int32, character ids of each word, for models that read words as
            characters. `rows` then holds indices of words instead of token ids, and batches have
            "token_ids" `(B, L, C)`. `None` means that `rows` holds token ids.
        positions: positions of words or answers in the rows, for taggers (`WordPositions`) and
            question answering (`WindowPositions`).
        splits: `(N + 1,)` int64 for N tagged sentences. The words of sentence i have the indices
            `splits[i]:splits[i + 1]`.
    """

    rows: TokenRows
    boundaries: np.ndarray | None
    labels: np.ndarray | TokenRows | None
    max_length: int
    _: dataclasses.KW_ONLY
    rows_per_example: int = 1
    cls_last: bool = False
    pad_id: int = Special.pad
    language_id: int = 0
    characters: np.ndarray | None = None
    positions: Any = None
    splits: Any = None


class ExampleBatches(BucketBatches):
    """Batches of B tokenized examples. An epoch of N examples has ceil(N / B) steps.

    A batch is a dict of these arrays, with R rows per example:

    - "token_ids" `(B, L)` int32, or `(B, R, L)` if R is above 1.
    - "segment_ids" int32 of the same shape, unless `EncodedExamples.boundaries` is `None`.
    - "language_ids" int32 of the same shape, unless `EncodedExamples.language_id` is 0.
    - "weight" `(B,)` float32, 1 for examples and 0 for padding.
    - "label" `(B,)`, `(B, 2)` or `(B, L)`, as in `EncodedExamples.labels`, with 0 for padding,
      unless the examples have no labels.

    If the model reads words as characters, "token_ids" is `(B, L, C)`, and "padding_mask" `(B, L)`
    int32 is 1 at words.

    Args:
        batch_size: number of examples per batch, B. If this number exceeds the smallest power of
            two above N, B is that power of two.
    """

    def __init__(self, encoded: EncodedExamples, batch_size: int, shapes: int = 4):
        self.encoded, labels = encoded, encoded.labels
        labels = labels.ids if isinstance(labels, TokenRows) else labels
        count = len(encoded.rows) // encoded.rows_per_example
        # Rounding up must not exceed the positions of the model: 100 would become 104.
        padded_lengths = choose_lengths(longest_rows([encoded.rows], count), shapes, 8)
        lengths = sorted({min(n, encoded.max_length) for n in padded_lengths})
        # A batch far larger than an epoch would be mostly padding and may not fit into memory.
        rows = min(batch_size, 1 << count.bit_length())
        batch_shapes = [(rows, length) for length in lengths]
        other_arrays = [encoded.boundaries, labels, encoded.characters]
        super().__init__([encoded.rows], count, batch_shapes, other_arrays=other_arrays)

    def labels(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers the labels of a batch, `(B,)`, `(B, 2)` or `(B, L)`, with 0 for padding."""
        labels = self.encoded.labels
        if isinstance(labels, TokenRows):
            return labels.padded(rows, length)
        batch_labels = labels[rows]
        batch_labels[rows < 0] = 0
        return batch_labels

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        encoded, examples, count = self.encoded, batch.rows, self.encoded.rows_per_example
        rows = examples[:, None] * count + np.arange(count)  # (B, R)
        rows = np.where(examples[:, None] < 0, -1, rows).reshape(-1)  # (B, R) -> (B R,)
        shape = (len(examples), *((count,) if count > 1 else ()), batch.length)
        token_ids = encoded.rows.padded(rows, batch.length, encoded.pad_id)  # (B R, L)
        is_real = token_ids != encoded.pad_id
        arrays = {"token_ids": token_ids.reshape(shape)}  # (B R, L) -> (B, L) or (B, R, L)
        if encoded.boundaries is not None:
            positions = np.arange(batch.length)
            is_second = positions >= encoded.boundaries[rows][:, None]  # (B R, L)
            segment_ids = (is_second & is_real).astype(np.int32)
            if encoded.cls_last:
                lengths = is_real.sum(axis=1, keepdims=True)  # (B R, 1)
                segment_ids[positions == lengths - 1] = CLS_SEGMENT
            arrays["segment_ids"] = segment_ids.reshape(shape)
        if encoded.language_id:
            arrays["language_ids"] = np.full(shape, encoded.language_id, np.int32)
        if encoded.characters is not None:
            arrays["padding_mask"] = is_real.astype(np.int32).reshape(shape)
            arrays["token_ids"] = encoded.characters[arrays["token_ids"]]
        arrays["weight"] = (examples >= 0).astype(np.float32)
        if encoded.labels is not None:
            arrays["label"] = self.labels(*batch)
        return arrays
