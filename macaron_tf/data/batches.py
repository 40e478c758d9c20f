"""Batches of encoded examples in a few static shapes. A run can resume at any step."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.errors import UserError
from macaron_tf.io.process_memory import return_freed_memory
from macaron_tf.settings import Count, Settings
from macaron_tf.special_ids import CLS_SEGMENT
from macaron_tf.text.token_rows import JoinedRows, TokenRows, fingerprint

_POOL_BATCHES = 16  # number of batches whose examples are sorted by length together
# Minimum number of examples at which `plan` returns freed memory to the system
_MANY_EXAMPLES = 1 << 18
Draw = Callable[[np.random.Generator], np.ndarray]


def in_parts(total: int, size: int) -> Iterator[slice]:
    """Yields consecutive slices of at most `size` examples that together cover `total` examples."""
    return (slice(begin, min(begin + size, total)) for begin in range(0, total, size))


class Batch(NamedTuple):
    """The indices of a batch's examples, and the length to which the examples are padded.

    Attributes:
        rows: `(B,)` int32 or int64, indices of the examples; -1 marks a row of padding.
        length: padded length L, or 0 if examples have a fixed shape and need no padding.
    """

    rows: np.ndarray
    length: int = 0


class Plan(Sequence[Batch]):
    """Sequence of S batches, which are stored as slices of one array of example indices.

    For 4.5 million pairs in 270,000 batches, the array `cuts` takes at most 6 MB. A list of `Batch`
    objects would take 65 MB.

    Args:
        rows: example indices of all batches, concatenated.
        cuts: `(S, 3)` int, start, end and padded length of each batch. Start and end are positions
            in `rows`.
    """

    def __init__(self, rows: np.ndarray, cuts: np.ndarray):
        self._rows, self._cuts = rows, cuts

    def __len__(self) -> int:
        return len(self._cuts)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Plan(self._rows, self._cuts[index])
        begin, end, length = self._cuts[index].tolist()
        return Batch(self._rows[begin:end], length)


class Buckets:
    """Length buckets. Each bucket has one padded length and one number of rows per batch.

    A bucket of length L has `max_tokens // L` rows per batch, rounded down to a multiple of
    `row_multiple`. A number of rows below `row_multiple` is not rounded.

    Args:
        lengths: padded lengths of the buckets.
        max_tokens: maximum number of padded tokens in a batch (rows times length). For translation
            pairs, source and target are counted separately, as in fairseq.
        row_multiple: number whose multiples are the possible numbers of rows per batch.
    """

    def __init__(self, lengths: Iterable[int], max_tokens: int, row_multiple: int = 8):
        self.lengths = tuple(sorted({int(length) for length in lengths}))
        if max_tokens < self.lengths[-1]:
            raise UserError(
                f"a batch of {max_tokens} tokens cannot hold a sequence of {self.lengths[-1]} "
                "tokens: raise the batch size (batching.max_tokens), or lower the maximum sequence "
                "length (cleaning.max_tokens)"
            )
        rows = [max_tokens // length for length in self.lengths]
        self.rows = tuple(n - n % row_multiple if n >= row_multiple else n for n in rows)

    @classmethod
    def of_rows(cls, lengths: Sequence[int], rows: int) -> "Buckets":
        """Builds buckets of the padded lengths `lengths` that all have `rows` rows per batch."""
        buckets = cls(lengths, rows * max(lengths))
        buckets.rows = (rows,) * len(buckets.lengths)
        return buckets

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.rows, self.lengths, strict=True))

    def bucket_of(self, lengths: np.ndarray) -> np.ndarray:
        """Returns the index of each row's bucket, the shortest bucket that holds the row.

        Args:
            lengths: `(N,)` row lengths, none greater than the length of the longest bucket.

        Returns:
            `(N,)` int16 indices into `self.lengths`.
        """
        table = np.searchsorted(self.lengths, np.arange(self.lengths[-1] + 1))
        return table.astype(np.int16)[lengths]

    def totals(self, lengths: np.ndarray) -> tuple[int, int]:
        """Counts the batches and the padded tokens of `plan(lengths, None)`, without planning."""
        counts = _histogram(lengths)
        members = np.bincount(self.bucket_of(np.arange(len(counts))), counts, len(self.rows))
        batches = tokens = carried = 0
        for count, (size, length) in zip(members.astype(int), self.shapes, strict=True):
            full, carried = divmod(carried + int(count), size)
            batches, tokens = batches + full, tokens + full * size * length
        if carried:  # `plan(lengths, None)` sorts by length, so the carried rows are the longest
            size, length = self.shapes[int(self.bucket_of(lengths.max()))]
            batches, tokens = batches + 1, tokens + size * length
        return batches, tokens

    def plan(self, lengths: np.ndarray, rng: np.random.Generator | None) -> Plan:
        """Assigns every row to exactly one batch.

        The rows left over after the full batches of a bucket move to the next longer bucket. Only
        the last batch of an epoch can therefore be partial, and rows of padding fill that batch.

        Args:
            lengths: `(N,)` row lengths.
            rng: generator that shuffles the rows within each bucket and the order of the batches;
                `None` means rows in ascending order of length.
        """
        lengths = np.asarray(lengths)
        dtype = np.int32 if len(lengths) < 1 << 31 else np.int64  # both dtypes shuffle equally
        if rng:
            order = np.arange(len(lengths), dtype=dtype)
            rng.shuffle(order)
        else:
            order = np.argsort(lengths, kind="stable").astype(dtype)
        parts = [self.bucket_of(lengths[order[part]]) for part in in_parts(len(order), 1 << 20)]
        buckets = np.concatenate([np.zeros(0, np.int16), *parts])
        rows, cuts, assigned, carried = [], [], 0, order[:0]
        for bucket, (size, length) in enumerate(self.shapes):
            members = np.concatenate([carried, order[buckets == bucket]])
            if rng is not None and len(carried):
                # Without a permutation, all rows that moved up would be in the same batch.
                members = rng.permutation(members)
            full = len(members) // size * size
            begins = np.arange(assigned, assigned + full, size, dtype)
            rows.append(members[:full])
            cuts.append(np.stack([begins, begins + size, np.full_like(begins, length)], axis=1))
            assigned, carried = assigned + full, members[full:]
        if len(carried):
            # Use the shortest bucket that holds the carried rows, which may all be short.
            size, length = self.shapes[int(self.bucket_of(lengths[carried].max()))]
            rows += [carried, np.full(size - len(carried), -1, dtype)]
            cuts.append(np.array([[assigned, assigned + size, length]], dtype))
        table = np.concatenate(cuts)  # (S, 3)
        return Plan(np.concatenate(rows), table[rng.permutation(len(table))] if rng else table)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    """Counts the rows of each length from 0 to the maximum, `(max + 1,)` int64.

    `bincount` copies its input to int64. Counting in chunks keeps that copy small.
    """
    counts = np.zeros(lengths.max() + 1, np.int64)
    for part in in_parts(len(lengths), 1 << 20):
        counts += np.bincount(lengths[part], minlength=len(counts))
    return counts


def choose_lengths(lengths: np.ndarray, count: int, multiple: int) -> list[int]:
    """Chooses the padded lengths with the least padding in total, by dynamic programming.

    The source and target of a translation pair have the same padded length. On Multi30k with 8
    batch shapes, 87.6% of the tokens in a batch are then real tokens, not padding. Separate lengths
    for source and target would raise this share only to 87.8%.

    Args:
        lengths: `(N,)` row lengths, N at least 1. The length of a pair is the length of its longer
            side.
        count: maximum number of padded lengths.
        multiple: number that divides every padded length.

    Returns:
        Padded lengths in ascending order. The last length is at least the maximum of `lengths`.
    """
    counts = _histogram(np.asarray(lengths))
    cells = -(-np.arange(len(counts)) // multiple)
    # Cell i stands for the padded length i * multiple.
    below = np.cumsum(np.bincount(cells, counts))  # below[i]: number of rows that fit into cell i
    cost = np.arange(len(below), dtype=np.float64)  # padded length of cell i, in multiples
    # best[i]: least cost of the rows up to cell i. Each iteration below allows one more length.
    best = below * cost
    previous = []
    for _ in range(min(count, len(below)) - 1):
        # total[i, j]: cost if cell i is the longest length and cell j <= i the second longest.
        total = best[None, :] + (below[:, None] - below[None, :]) * cost[:, None]
        total[np.triu_indices(len(below), 1)] = np.inf
        previous.append(total.argmin(axis=1))
        best = total.min(axis=1)
    cell = len(below) - 1
    chosen = [cell]
    for shorter_cell in reversed(previous):
        cell = int(shorter_cell[cell])
        chosen.append(cell)
    return sorted({cell * multiple for cell in chosen if below[cell] > 0})


class Batches(abc.ABC):
    """Base class for batch sources. The seed and the step determine each batch.

    The seed and the epoch index seed the NumPy generator that shuffles an epoch. A run that resumes
    in the middle of an epoch plans the whole epoch again, but does not gather the batches before
    its start step, so that it resumes quickly. NumPy gathers each batch from arrays of ids, which
    may be memory-mapped, and tf.data prefetches the batches.
    """

    steps_per_epoch: int

    @abc.abstractmethod
    def plan(self, rng: np.random.Generator | None) -> Sequence[Batch]:
        """Returns the batches of an epoch, as example indices.

        Args:
            rng: generator that shuffles the epoch; `None` means every example once, in a fixed
                order.
        """

    @abc.abstractmethod
    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns a dict mapping name to array for the examples of a batch."""

    @property
    @abc.abstractmethod
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        """Dtype and shape of each array in a batch; a dimension that varies is `None`."""

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """Yields batches as dicts of NumPy arrays.

        Args:
            seed: seed of the shuffling; each epoch has its own order.
            start_step: index of the first batch, counted from the start of epoch 0.
            repeat: whether to continue with further epochs forever.
        """
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            yield from map(self.gather, self.plan(np.random.default_rng([seed, epoch]))[offset:])
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        """Returns a prefetched dataset of the batches that the method `batches` yields.

        The dataset has a known cardinality.
        """
        remaining_steps = self.steps_per_epoch - start_step % self.steps_per_epoch
        return _generator_dataset(
            lambda: self.batches(seed, start_step, repeat),
            self.element_spec,
            tf.data.INFINITE_CARDINALITY if repeat else remaining_steps,
        )

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns a dataset that has every example once, in the order of `plan(None)`."""
        plan = self.plan(None)
        return _generator_dataset(lambda: map(self.gather, plan), self.element_spec, len(plan))


def prefetch(dataset: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Prefetches a dataset with tf.data's autotuning switched off.

    At the end of an iterator, tf.data waits for its autotuning thread, which may notice the end
    late. With autotuning, 55 of 250 evaluations of 0.7 s took half a second longer, and longer
    evaluations took up to a minute longer. Without autotuning, prefetch buffers still grow, and
    parallel maps still use all processors.

    Args:
        steps: number of batches, or `tf.data.UNKNOWN_CARDINALITY`.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if steps != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _generator_dataset(
    make_iterator: Callable[[], Iterator], spec: dict, steps: int
) -> tf.data.Dataset:
    return prefetch(tf.data.Dataset.from_generator(make_iterator, output_signature=spec), steps)


class ArrayBatches(Batches):
    """Batches of examples that a function gathers by index, such as images or windows of a text.

    A shuffled epoch has only batches of B examples. The remaining examples are left out.

    Args:
        count: number of examples, N.
        size: number of examples per batch, B.
        gather: function from example indices `(B,)` to the arrays of a batch.
        shapes: dict mapping the name of each array to a tuple (dtype, shape).
        lengths: `(N,)` example lengths. The batches of a shuffled epoch consist of examples of
            similar length. `None` means that length does not matter.
        shuffle: whether to shuffle each epoch.
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
        self.count = count
        self.size = min(size, count)
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.shuffle = shuffle
        self.steps_per_epoch = count // self.size if shuffle else -(-count // self.size)
        self._gather, self._shapes = gather, shapes

    def plan(self, rng: np.random.Generator | None) -> list[Batch]:
        if rng is None or not self.shuffle:
            indices = np.arange(self.count)
            return [Batch(indices[part]) for part in in_parts(self.count, self.size)]
        order = rng.permutation(self.count)
        if self.lengths is not None:
            pools = np.split(
                order, range(_POOL_BATCHES * self.size, self.count, _POOL_BATCHES * self.size)
            )
            order = np.concatenate([pool[np.argsort(self.lengths[pool])] for pool in pools])
        # (N,) -> (N / B, B)
        batches = order[: self.steps_per_epoch * self.size].reshape(-1, self.size)
        return [Batch(rows) for rows in rng.permutation(batches)]

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        return self._gather(batch.rows)

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in self._shapes.items()}


@dataclasses.dataclass(frozen=True)
class MixingConfig(Settings):
    """Mixing rates for training one model on several tasks.

    The rate of a task with e examples is proportional to min(e, K)^(1/T).

    Attributes:
        limit: upper limit K on the example count e in the formula; 1 gives all tasks the same rate.
        temperature: temperature T; 1 makes the rate proportional to min(e, K), and higher
            temperatures make the rates more equal.

    References: Raffel et al. 2020 (T5), section 3.5.2.
    """

    section: ClassVar[str] = "mixing"

    limit: Count = 524_288
    temperature: Annotated[float, Ge(1)] = 1.0

    def rates(self, counts: np.ndarray) -> np.ndarray:
        """Computes the mixing rates of N tasks.

        Args:
            counts: `(N,)` number of examples of each task.

        Returns:
            `(N,)` rates, which add up to 1.
        """
        rates = np.minimum(counts, self.limit) ** (1.0 / self.temperature)
        return rates / rates.sum()

    def make_draw(self, tasks: np.ndarray) -> Draw:
        """Returns a function that draws the N examples of an epoch at the mixing rates.

        The function takes a NumPy generator and returns example indices `(N,)`. Within an epoch,
        an example occurs twice only if every other example of its task occurs at least once.

        Args:
            tasks: `(N,)` index of the task of each example.
        """
        members = [np.flatnonzero(tasks == task) for task in range(tasks.max() + 1)]
        rates = self.rates(np.array([len(indices) for indices in members]))

        def draw(rng: np.random.Generator) -> np.ndarray:
            counts = rng.multinomial(len(tasks), rates)
            return np.concatenate(
                [
                    np.concatenate(
                        [rng.permutation(indices) for _ in range(-(-n // len(indices)))]
                    )[:n]
                    for indices, n in zip(members, counts, strict=True)
                    if n
                ]
            )

        return draw


class BucketBatches(Batches):
    """Batches of token rows with similar lengths, padded to the length of a bucket.

    Without `draw`, an epoch has every example once, and at most one batch contains rows of padding.

    Args:
        rows: one or several collections of token rows, such as source and target. Each collection
            has the same number of rows for every example.
        count: number of examples, N.
        make_buckets: function from `row_lengths` to `Buckets`.
        others: further arrays that affect training, such as labels. `fingerprint` covers these
            arrays.
        indices: function that returns the `(N,)` integers that identify the examples in
            `evaluation_dataset`; `None` means 0 to N - 1.
        draw: function from a NumPy generator to the example indices `(N,)` of a shuffled epoch, as
            `MixingConfig.make_draw` returns; `None` means each example once.
    """

    def __init__(
        self,
        rows: Sequence[TokenRows | JoinedRows],
        count: int,
        make_buckets: Callable[[np.ndarray], Buckets],
        *,
        other_arrays: Sequence[np.ndarray | None] = (),
        indices: Callable[[], np.ndarray] | None = None,
        draw: Draw | None = None,
    ):
        self._draw = draw
        self._rows, self._other_arrays = rows, other_arrays
        self._indices = indices
        self._count = count
        self.rows_per_example = sum(len(part) for part in rows) // count
        self.real_tokens = sum(part.size for part in rows)
        lengths = self.row_lengths
        self.buckets = make_buckets(lengths)
        self.steps_per_epoch, self._padded_tokens = self.buckets.totals(lengths)

    def __len__(self) -> int:
        return self._count

    @property
    def row_lengths(self) -> np.ndarray:
        """Length of the longest row of each example, `(N,)` int32.

        The array is computed on each access, because it takes 18 MB for 4.5 million pairs.
        """
        max_lengths = np.zeros(self._count, np.int32)
        for part in self._rows:
            lengths = part.lengths.reshape(self._count, -1).max(axis=1)  # (N, R) -> (N,)
            np.maximum(max_lengths, lengths.astype(np.int32, copy=False), out=max_lengths)
        return max_lengths

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.buckets.lengths

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All batch shapes `(B, L)` that can occur, in ascending order of L."""
        return self.buckets.shapes

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
            planned = self.buckets.plan(self.row_lengths, rng)
            if len(self) >= _MANY_EXAMPLES:
                return_freed_memory()
            return planned
        # Drawn examples may fill more or fewer batches, but every epoch needs `steps_per_epoch`.
        lengths, batches = self.row_lengths, []
        while len(batches) < self.steps_per_epoch:
            drawn = np.append(self._draw(rng), -1)  # drawn[-1] == -1 keeps rows of padding
            planned = self.buckets.plan(lengths[drawn[:-1]], rng)
            batches += [Batch(drawn[rows], length) for rows, length in planned]
        return batches[: self.steps_per_epoch]

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns a dataset with every example once, in ascending order of length.

        Batches also have "index" `(B,)` int32, the integer that identifies each example (see
        `indices`). Rows of padding have the index -1.
        """

        def batches() -> Iterator[dict]:
            indices = np.arange(len(self)) if self._indices is None else self._indices()
            for batch in self.plan(None):
                index = np.where(batch.rows < 0, -1, indices[batch.rows]).astype(np.int32)
                yield {**self.gather(batch), "index": index}

        spec = self.element_spec
        size = next(iter(spec.values())).shape[:1]
        index = tf.TensorSpec(size, tf.int32, "index")
        return _generator_dataset(batches, {**spec, "index": index}, self.steps_per_epoch)

    def fingerprint(self) -> str:
        """Computes the SHA-256 (hex) of token ids, row offsets and the arrays in `other_arrays`."""
        other_arrays = (array for array in self._other_arrays if array is not None)
        rows = (array for part in self._rows for array in part.arrays())
        return fingerprint(itertools.chain(rows, other_arrays))

    def padding_efficiency(self) -> float:
        """Returns the share of real tokens among all tokens in `evaluation_dataset`'s batches."""
        return self.real_tokens / (self._padded_tokens * self.rows_per_example)

    def summary(self) -> str:
        """Returns example count, step count, share of real tokens and batch shapes in one line."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        return (
            f"{len(self):,} examples, {self.steps_per_epoch:,} steps per epoch, "
            f"{self.padding_efficiency():.1%} real tokens after padding, shapes {shapes}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """N tokenized examples of R rows each.

    R is the number of choices in multiple choice, and the number of sentences in a set of sentences
    whose embeddings are compared. Otherwise R is 1.

    Attributes:
        rows: token ids with special ids and without padding. Example n has the R rows from n R on.
        boundaries: `(N R,)` int64, first position of segment 1 in each row. The boundary of a row
            with a single text is the row length. `None` means that batches have no "segment_ids".
        labels: `(N,)` int32 classes or float32 scores; `(N, 2)` int32 first and last position of
            an answer; or `TokenRows` with one label per token. `None` means that the examples have
            no labels.
        max_length: maximum number of ids in a row.
        rows_per_example: number of rows per example, R.
        cls_last: whether rows end with [CLS], which is then segment 2, as in XLNet.
        language_id: language id of all texts. Unless the id is 0, batches also have "language_ids".
        characters: `(words, C)` int32, character ids of each word, for models that read words as
            characters. Batches then have "token_ids" `(B, L, C)`. `None` means that `rows` holds
            token ids.
        needs_labels: whether training raises an error if `labels` is `None`.
    """

    needs_labels: ClassVar[bool] = True

    rows: TokenRows | JoinedRows
    boundaries: np.ndarray | None
    labels: np.ndarray | TokenRows | None
    max_length: int
    rows_per_example: int = dataclasses.field(default=1, kw_only=True)
    cls_last: bool = dataclasses.field(default=False, kw_only=True)
    language_id: int = dataclasses.field(default=0, kw_only=True)
    characters: np.ndarray | None = dataclasses.field(default=None, kw_only=True)


class ExampleBatches(BucketBatches):
    """Batches of B tokenized examples. An epoch of N examples has ceil(N / B) steps.

    A batch is a dict of these arrays, with R rows per example:

    - "token_ids" `(B, L)` int32, or `(B, R, L)` if R is above 1.
    - "segment_ids" int32 of the same shape, unless `EncodedExamples.boundaries` is `None`.
    - "weight" `(B,)` float32, 1 for examples and 0 for padding.
    - "label" `(B,)`, `(B, 2)` or `(B, L)`, as in `EncodedExamples.labels`, with 0 for padding.

    If the model reads words as characters, "token_ids" is `(B, L, C)`, and "padding_mask" `(B, L)`
    int32 is 1 at words.

    Args:
        encoded: tokenized examples, which several `ExampleBatches` objects may share.
        batch_size: number of examples per batch, B.
        shapes: maximum number of different padded lengths.
    """

    def __init__(self, encoded: EncodedExamples, batch_size: int, shapes: int = 4):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} is less than 1: give 1 or more")
        self.encoded = encoded
        labels = encoded.labels
        labels = labels.ids if isinstance(labels, TokenRows) else labels

        def make_buckets(row_lengths: np.ndarray) -> Buckets:
            # Rounding up must not exceed the positions of the model: 100 would become 104.
            padded_lengths = choose_lengths(row_lengths, shapes, 8)
            lengths = [min(n, encoded.max_length) for n in padded_lengths]
            # A batch far larger than an epoch would be mostly padding and may not fit into memory.
            max_rows = 1 << len(row_lengths).bit_length()
            return Buckets.of_rows(lengths, min(batch_size, max_rows))

        super().__init__(
            [encoded.rows],
            len(encoded.rows.lengths) // encoded.rows_per_example,
            make_buckets,
            other_arrays=[encoded.boundaries, labels, encoded.characters],
        )

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        if self.encoded.needs_labels and self.encoded.labels is None:
            raise UserError("the training examples have no labels: train on a split with labels")
        return super().dataset(seed, start_step, repeat)

    def labels(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers the labels of a batch, `(B,)`, `(B, 2)` or `(B, L)`, with 0 for padding.

        Args:
            rows: `(B,)` indices of the examples, with -1 for padding.
            length: padded length L.
        """
        labels = self.encoded.labels
        if isinstance(labels, TokenRows):
            return labels.padded(rows, length)
        batch_labels = labels[rows]
        batch_labels[rows < 0] = 0
        return batch_labels

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        encoded, examples = self.encoded, batch.rows
        count = encoded.rows_per_example
        rows = examples[:, None] * count + np.arange(count)  # (B, R)
        rows = np.where(examples[:, None] < 0, -1, rows).reshape(-1)  # (B, R) -> (B R,)
        shape = (len(examples), *((count,) if count > 1 else ()), batch.length)
        token_ids = encoded.rows.padded(rows, batch.length)  # (B R, L)
        arrays = {"token_ids": token_ids.reshape(shape)}  # (B R, L) -> (B, L) or (B, R, L)
        if encoded.boundaries is not None:
            positions = np.arange(batch.length)
            is_second = positions >= encoded.boundaries[rows][:, None]  # (B R, L)
            segment_ids = (is_second & (token_ids != 0)).astype(np.int32)
            if encoded.cls_last:
                lengths = (token_ids != 0).sum(axis=1, keepdims=True)  # (B R, 1)
                segment_ids[positions == lengths - 1] = CLS_SEGMENT
            arrays["segment_ids"] = segment_ids.reshape(shape)
        if encoded.language_id:
            arrays["language_ids"] = np.full(shape, encoded.language_id, np.int32)
        if encoded.characters is not None:
            arrays["padding_mask"] = (token_ids != 0).astype(np.int32).reshape(shape)
            arrays["token_ids"] = encoded.characters[arrays["token_ids"]]
        arrays["weight"] = (examples >= 0).astype(np.float32)
        if encoded.labels is not None:
            arrays["label"] = self.labels(*batch)
        return arrays
