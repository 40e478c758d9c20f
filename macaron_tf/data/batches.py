"""Batches of encoded examples in a few static shapes, resumable at any step."""

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

_POOL = 16  # batches whose examples are sorted by length together
_MANY = 1 << 18  # examples from which on freed memory of a plan is returned to the system
Draw = Callable[[np.random.Generator], np.ndarray]


def in_parts(total: int, size: int) -> Iterator[slice]:
    """Yields slices of at most `size` that cover `total` examples."""
    return (slice(begin, min(begin + size, total)) for begin in range(0, total, size))


class Batch(NamedTuple):
    """The examples of a batch and the length that they are padded to.

    Attributes:
        rows: `(B,)` int32 or int64 numbers of examples; -1: a row of padding.
        length: L; 0 if the examples' own lengths decide.
    """

    rows: np.ndarray
    length: int = 0


class Plan(Sequence[Batch]):
    """A sequence of batches that are sliced from an array of rows on access.

    A list of the 270,000 batches of 4.5 million pairs would take 65 MB; the slices take 6.

    Args:
        rows: rows of all batches, one batch after another.
        cuts: `(S, 3)` int, the begin and end of each batch in `rows`, and its padded length.
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
    """A few lengths of rows, each with as many rows per batch as the token budget allows.

    Args:
        lengths: lengths of the buckets.
        max_tokens: greatest rows times length of a batch, on one side, as in fairseq.
        row_multiple: the rows of a batch are rounded down to a multiple of this number, unless they
            are fewer.
    """

    def __init__(self, lengths: Iterable[int], max_tokens: int, row_multiple: int = 8):
        self.lengths = tuple(sorted({int(length) for length in lengths}))
        if max_tokens < self.lengths[-1]:
            raise UserError(
                f"a batch of {max_tokens} tokens cannot hold a row of {self.lengths[-1]}: raise "
                "the tokens of a batch or lower the greatest number of tokens of a line"
            )
        rows = [max_tokens // length for length in self.lengths]
        self.rows = tuple(n - n % row_multiple if n >= row_multiple else n for n in rows)

    @classmethod
    def of_rows(cls, lengths: Sequence[int], rows: int) -> "Buckets":
        """Makes buckets with equally many rows, for batch sizes that count examples."""
        buckets = cls(lengths, rows * max(lengths))
        buckets.rows = (rows,) * len(buckets.lengths)
        return buckets

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.rows, self.lengths, strict=True))

    def bucket_of(self, lengths: np.ndarray) -> np.ndarray:
        """The number of each row's bucket, `(N,)` int16; no row may exceed the longest bucket."""
        table = np.searchsorted(self.lengths, np.arange(self.lengths[-1] + 1))
        return table.astype(np.int16)[lengths]

    def totals(self, lengths: np.ndarray) -> tuple[int, int]:
        """Counts the batches of `plan(lengths, None)` and their padded tokens."""
        counts = _histogram(lengths)
        members = np.bincount(self.bucket_of(np.arange(len(counts))), counts, len(self.rows))
        batches = tokens = carried = 0
        for count, (size, length) in zip(members.astype(int), self.shapes, strict=True):
            full, carried = divmod(carried + int(count), size)
            batches, tokens = batches + full, tokens + full * size * length
        if carried:  # the longest rows, in ascending order of length
            size, length = self.shapes[int(self.bucket_of(lengths.max()))]
            batches, tokens = batches + 1, tokens + size * length
        return batches, tokens

    def plan(self, lengths: np.ndarray, rng: np.random.Generator | None) -> Plan:
        """Assigns every row to exactly one batch.

        Rows that do not fill a batch of their bucket move to the next longer bucket. An epoch then
        has one partial batch instead of one per bucket, which is filled up with rows of padding.

        Args:
            lengths: `(N,)` lengths of the rows.
            rng: shuffles rows within buckets, and batches; None: rows in ascending length.
        """
        lengths = np.asarray(lengths)
        number = np.int32 if len(lengths) < 1 << 31 else np.int64  # both draw the same order
        if rng:
            order = np.arange(len(lengths), dtype=number)
            rng.shuffle(order)
        else:
            order = np.argsort(lengths, kind="stable").astype(number)
        parts = [self.bucket_of(lengths[order[part]]) for part in in_parts(len(order), 1 << 20)]
        buckets = np.concatenate([np.zeros(0, np.int16), *parts])
        rows, cuts, dealt, carried = [], [], 0, order[:0]
        for bucket, (size, length) in enumerate(self.shapes):
            members = np.concatenate([carried, order[buckets == bucket]])
            if rng is not None and len(carried):
                # Mix them in: the shorter rows that moved up would otherwise share a batch.
                members = rng.permutation(members)
            full = len(members) // size * size
            begins = np.arange(dealt, dealt + full, size, number)
            rows.append(members[:full])
            cuts.append(np.stack([begins, begins + size, np.full_like(begins, length)], axis=1))
            dealt, carried = dealt + full, members[full:]
        if len(carried):
            # They may all be short, so use the smallest bucket that holds them.
            size, length = self.shapes[int(self.bucket_of(lengths[carried].max()))]
            rows += [carried, np.full(size - len(carried), -1, number)]
            cuts.append(np.array([[dealt, dealt + size, length]], number))
        table = np.concatenate(cuts)  # (S, 3)
        return Plan(np.concatenate(rows), table[rng.permutation(len(table))] if rng else table)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    """Counts rows of each length from 0 on, in chunks, because `bincount` converts to int64."""
    counts = np.zeros(lengths.max() + 1, np.int64)
    for part in in_parts(len(lengths), 1 << 20):
        counts += np.bincount(lengths[part], minlength=len(counts))
    return counts


def choose_lengths(lengths: np.ndarray, count: int, multiple: int) -> list[int]:
    """Chooses padded lengths that waste the least padding, by dynamic programming.

    Separate lengths for source and target were tried on Multi30k and not kept: with 8 pairs of
    lengths 87.8% of the padded tokens are real, with 8 single lengths 87.6%.

    Args:
        lengths: `(N,)` lengths of rows, for pairs those of the longer side; at least one row.
        count: most lengths to choose.
        multiple: the lengths are multiples of this number.

    Returns:
        The lengths in ascending order; the last is at least the longest row.
    """
    counts = _histogram(np.asarray(lengths))
    cells = -(-np.arange(len(counts)) // multiple)
    below = np.cumsum(np.bincount(cells, counts))  # rows that fit into a cell
    cost = np.arange(len(below), dtype=np.float64)  # padded length of a row, in multiples
    best = below * cost  # best[i]: cost of the rows up to cell i with one length, then two, ...
    previous = []
    for _ in range(min(count, len(below)) - 1):
        # total[i, j]: cost if the longest length is cell i and the next shorter one cell j <= i.
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


class Batches(abc.ABC):
    """Base of the sources of batches. Equal seeds and steps give equal batches.

    NumPy's generator draws the order of an epoch from the seed and the epoch's number. Skipped
    batches are never gathered, so that a run resumes at any step at once. NumPy gathers the batches
    from ids, which may be memory-mapped, and tf.data prefetches them.
    """

    steps_per_epoch: int

    @abc.abstractmethod
    def plan(self, rng: np.random.Generator | None) -> Sequence[Batch]:
        """Returns an epoch's batches in random order; for None every example once, in order."""

    @abc.abstractmethod
    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch."""

    @property
    @abc.abstractmethod
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        """Specification of every batch."""

    def batches(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> Iterator[dict]:
        """Yields batches as NumPy arrays, from a step on that counts from the start of epoch 0.

        Args:
            seed: determines the order, together with the epoch.
            start_step: number of the first batch.
            repeat: whether further epochs follow without end.
        """
        epoch, offset = divmod(start_step, self.steps_per_epoch)
        while True:
            yield from map(self.gather, self.plan(np.random.default_rng([seed, epoch]))[offset:])
            if not repeat:
                return
            epoch, offset = epoch + 1, 0

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        """Returns `batches` as a prefetched tf.data.Dataset of known cardinality."""
        left = self.steps_per_epoch - start_step % self.steps_per_epoch
        return _dataset(
            lambda: self.batches(seed, start_step, repeat),
            self.element_spec,
            tf.data.INFINITE_CARDINALITY if repeat else left,
        )

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every example once, in the order of `plan(None)`."""
        plan = self.plan(None)
        return _dataset(lambda: map(self.gather, plan), self.element_spec, len(plan))


def prefetched(dataset: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Prefetches a dataset, without tf.data's autotuning.

    The thread of the autotuning can miss the end of an iterator, which then waits for it: of 250
    evaluations of 0.7 s, 55 ended half a second late, and longer ones up to a minute late. Without
    it, prefetch buffers still grow, and maps use all processors.

    Args:
        steps: number of batches, or `tf.data.UNKNOWN_CARDINALITY`.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if steps != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _dataset(make: Callable[[], Iterator], spec: dict, steps: int) -> tf.data.Dataset:
    return prefetched(tf.data.Dataset.from_generator(make, output_signature=spec), steps)


class ArrayBatches(Batches):
    """Batches of examples that a function gathers: images, pieces of music, windows of a text.

    Args:
        count: number of examples, N.
        size: examples per batch, B. A shuffled epoch leaves out examples that fill no batch.
        gather: function from numbers of examples `(B,)` to the arrays of a batch.
        shapes: dtype and shape of each array by name.
        lengths: `(N,)` lengths of the examples; a shuffled epoch then batches similar lengths.
        shuffle: whether epochs are shuffled.
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
            numbers = np.arange(self.count)
            return [Batch(numbers[part]) for part in in_parts(self.count, self.size)]
        order = rng.permutation(self.count)
        if self.lengths is not None:
            pools = np.split(order, range(_POOL * self.size, self.count, _POOL * self.size))
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
    """Mixing rates of the tasks of one model.

    A task of e examples has a rate proportional to min(e, K)^(1/T).

    Attributes:
        limit: K, the most examples of a task that count; 1: all tasks have the same rate.
        temperature: T; 1: rates proportional to the examples; greater values make them more equal.

    References: Raffel et al. 2020 (T5), section 3.5.2.
    """

    section: ClassVar[str] = "mixing"

    limit: Count = 524_288
    temperature: Annotated[float, Ge(1)] = 1.0

    def rates(self, counts: np.ndarray) -> np.ndarray:
        """Rates, which add up to 1, of tasks with these numbers of examples, both `(T,)`."""
        rates = np.minimum(counts, self.limit) ** (1.0 / self.temperature)
        return rates / rates.sum()

    def draws(self, tasks: np.ndarray) -> Draw:
        """Returns a function that draws the N examples of an epoch by the rates.

        An example is repeated within an epoch only after all others of its task.

        Args:
            tasks: `(N,)` number of each example's task, from 0 on.
        """
        members = [np.flatnonzero(tasks == task) for task in range(tasks.max() + 1)]
        rates = self.rates(np.array([len(own) for own in members]))

        def draw(rng: np.random.Generator) -> np.ndarray:
            counts = rng.multinomial(len(tasks), rates)
            return np.concatenate(
                [
                    np.concatenate([rng.permutation(own) for _ in range(-(-n // len(own)))])[:n]
                    for own, n in zip(members, counts, strict=True)
                    if n
                ]
            )

        return draw


class BucketBatches(Batches):
    """Batches of rows of ids with similar lengths, padded to the length of their bucket.

    An epoch has every example once; at most one batch is filled up with rows of padding.

    Args:
        rows: rows of ids, in one or several parts; every example has equally many rows in a part.
        count: number of examples, N.
        make_buckets: function from `row_lengths` to buckets.
        others: arrays besides the ids that a model is trained on, for `fingerprint`.
        indices: function that returns numbers `(N,)` of the examples for `evaluation_dataset`;
            None: 0 to N - 1.
        draw: function that draws the examples `(N,)` of a shuffled epoch, see `MixingConfig`; None:
            each example once.
    """

    def __init__(
        self,
        rows: Sequence[TokenRows | JoinedRows],
        count: int,
        make_buckets: Callable[[np.ndarray], Buckets],
        *,
        others: Sequence[np.ndarray | None] = (),
        indices: Callable[[], np.ndarray] | None = None,
        draw: Draw | None = None,
    ):
        self._draw = draw
        self._rows, self._others = rows, others
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

        It is not kept, because it takes 18 MB for 4.5 million pairs.
        """
        longest = np.zeros(self._count, np.int32)
        for part in self._rows:
            lengths = part.lengths.reshape(self._count, -1).max(axis=1)  # (N, R) -> (N,)
            np.maximum(longest, lengths.astype(np.int32, copy=False), out=longest)
        return longest

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.buckets.lengths

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """`(B, L)` of all possible batches, shortest first."""
        return self.buckets.shapes

    @property
    def element_spec(self) -> dict[str, tf.TensorSpec]:
        # From batches of padding. A dimension that differs between buckets is None.
        made = [self.gather(Batch(np.full(size, -1), length)) for size, length in self.shapes]
        spec = {}
        for name, array in made[0].items():
            shapes = zip(*(batch[name].shape for batch in made), strict=True)
            shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes]
            spec[name] = tf.TensorSpec(shape, array.dtype, name)
        return spec

    def plan(self, rng: np.random.Generator | None) -> Sequence[Batch]:
        if rng is None or self._draw is None:
            planned = self.buckets.plan(self.row_lengths, rng)
            if len(self) >= _MANY:
                return_freed_memory()
            return planned
        # Drawn examples may fill more or fewer batches; every epoch has the same number of them.
        lengths, batches = self.row_lengths, []
        while len(batches) < self.steps_per_epoch:
            drawn = np.append(self._draw(rng), -1)  # so that index -1, padding, gives -1
            planned = self.buckets.plan(lengths[drawn[:-1]], rng)
            batches += [Batch(drawn[rows], length) for rows, length in planned]
        return batches[: self.steps_per_epoch]

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every example once, in ascending order of length.

        Batches also have "index" `(B,)` int32, the example's number, -1 in rows of padding.
        """

        def batches() -> Iterator[dict]:
            numbers = np.arange(len(self)) if self._indices is None else self._indices()
            for batch in self.plan(None):
                index = np.where(batch.rows < 0, -1, numbers[batch.rows]).astype(np.int32)
                yield {**self.gather(batch), "index": index}

        spec = self.element_spec
        size = next(iter(spec.values())).shape[:1]
        index = tf.TensorSpec(size, tf.int32, "index")
        return _dataset(batches, {**spec, "index": index}, self.steps_per_epoch)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the training data: ids, lengths and labels."""
        others = (array for array in self._others if array is not None)
        rows = (array for part in self._rows for array in part.arrays())
        return fingerprint(itertools.chain(rows, others))

    def padding_efficiency(self) -> float:
        """Share of real tokens among the padded tokens of `evaluation_dataset`."""
        return self.real_tokens / (self._padded_tokens * self.rows_per_example)

    def summary(self) -> str:
        """Describes the data in one line: examples, steps, share of real tokens, shapes."""
        shapes = " ".join(f"{rows}x{length}" for rows, length in self.shapes)
        return (
            f"{len(self):,} examples, {self.steps_per_epoch:,} steps an epoch, "
            f"{self.padding_efficiency():.1%} of the padded tokens real, shapes {shapes}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedExamples:
    """N tokenized examples of R rows each; R is 1 unless choices or sentences are compared.

    Attributes:
        rows: ids with special ones, without padding. Example n has the rows n R to n R + R - 1.
        boundaries: `(N R,)` int64, first position of segment 1, or the row's length if it has one
            text; None: batches have no segments.
        labels: `(N,)` int32 classes or float32 scores; `(N, 2)` int32 positions; `TokenRows` with a
            label for each id; or None.
        max_length: greatest length of a row.
        count: R.
        cls_last: whether a row's last id is [CLS], of segment 2.
        language_id: language of all texts; batches have `language_ids` unless it is 0, the model's
            first language.
        characters: `(words, C)` int32, the characters of each word if ids are words; "token_ids" of
            a batch are then `(B, L, C)`. None: ids are tokens.
        needs_labels: whether training needs labels.
    """

    needs_labels: ClassVar[bool] = True

    rows: TokenRows | JoinedRows
    boundaries: np.ndarray | None
    labels: np.ndarray | TokenRows | None
    max_length: int
    count: int = dataclasses.field(default=1, kw_only=True)
    cls_last: bool = dataclasses.field(default=False, kw_only=True)
    language_id: int = dataclasses.field(default=0, kw_only=True)
    characters: np.ndarray | None = dataclasses.field(default=None, kw_only=True)


class ExampleBatches(BucketBatches):
    """Batches of `batch_size` tokenized examples; an epoch has ceil(N / batch_size) steps.

    A batch has "token_ids" and, if there are segments, "segment_ids", `(B, L)` or `(B, R, L)`
    int32; "weight" `(B,)` float32; and "label", `(B,)` int32 or float32, `(B, 2)` int32 or `(B, L)`
    int32. Label and weight are 0 in rows of padding. If words are read by their characters, ids are
    `(B, L, C)`, and "padding_mask" `(B, L)` int32 is 1 at words.

    Args:
        encoded: the examples; batches of several sizes may share them.
        batch_size: B.
        shapes: most different lengths of batches.
    """

    def __init__(self, encoded: EncodedExamples, batch_size: int, shapes: int = 4):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be a whole number of at least 1")
        self.encoded = encoded
        labels = encoded.labels
        labels = labels.ids if isinstance(labels, TokenRows) else labels

        def make_buckets(row_lengths: np.ndarray) -> Buckets:
            # A model with 100 learned positions has none for a batch of length 104.
            best = choose_lengths(row_lengths, shapes, 8)
            lengths = [min(n, encoded.max_length) for n in best]
            # A batch far larger than an epoch would be padding, and may not fit into memory.
            most = 1 << len(row_lengths).bit_length()
            return Buckets.of_rows(lengths, min(batch_size, most))

        super().__init__(
            [encoded.rows],
            len(encoded.rows.lengths) // encoded.count,
            make_buckets,
            others=[encoded.boundaries, labels, encoded.characters],
        )

    def dataset(self, seed: int = 0, start_step: int = 0, repeat: bool = True) -> tf.data.Dataset:
        if self.encoded.needs_labels and self.encoded.labels is None:
            raise UserError(
                "these examples have no labels to learn from: train on a split that has them"
            )
        return super().dataset(seed, start_step, repeat)

    def labels(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Labels of examples in a batch of length L: `(B,)`, `(B, 2)` or `(B, L)`."""
        labels = self.encoded.labels
        if isinstance(labels, TokenRows):
            return labels.padded(rows, length)
        found = labels[rows]
        found[rows < 0] = 0
        return found

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        encoded, examples = self.encoded, batch.rows
        own = examples[:, None] * encoded.count + np.arange(encoded.count)  # (B, R)
        own = np.where(examples[:, None] < 0, -1, own).reshape(-1)  # (B, R) -> (B R,)
        shape = (len(examples), *((encoded.count,) if encoded.count > 1 else ()), batch.length)
        token_ids = encoded.rows.padded(own, batch.length)  # (B R, L)
        arrays = {"token_ids": token_ids.reshape(shape)}  # (B R, L) -> (B, L) or (B, R, L)
        if encoded.boundaries is not None:
            positions = np.arange(batch.length)
            second = positions >= encoded.boundaries[own][:, None]  # (B R, L)
            segment_ids = (second & (token_ids != 0)).astype(np.int32)
            if encoded.cls_last:
                ends = (token_ids != 0).sum(axis=1, keepdims=True)  # (B R, 1)
                segment_ids[positions == ends - 1] = CLS_SEGMENT
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
