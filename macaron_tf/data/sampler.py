"""The order of examples and rows: the seed and the step determine each batch, at any step.

`plan_batches` deals examples to buckets of similar lengths, `plan_pools` to batches of one size,
and `MixingConfig` draws the examples of several tasks. `row_groups` orders the rows of a corpus,
whose shards are read one group at a time.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.errors import UserError
from macaron_tf.settings import Count, Settings

_POOL_BATCHES = 16  # number of batches whose examples are sorted by length together
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

    For 4.5 million pairs in 270,000 batches, the int32 array `cuts` takes 3 MB. A list of `Batch`
    objects would take 65 MB.
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


Shapes = Sequence[tuple[int, int]]  # (rows, padded length) of each bucket, in order of length


def bucket_shapes(lengths: Iterable[int], max_tokens: int, row_multiple: int = 8) -> Shapes:
    """Returns the batch shape of a bucket for each padded length.

    A bucket of length L has `max_tokens // L` rows per batch, rounded down to a multiple of
    `row_multiple`. A number of rows below `row_multiple` is not rounded.

    Args:
        max_tokens: maximum number of padded tokens in a batch (rows times length). For translation
            pairs, source and target are counted separately, as in fairseq.
    """
    lengths = sorted(set(map(int, lengths)))
    if max_tokens < lengths[-1]:
        raise UserError(f"a batch of {max_tokens} tokens cannot hold a sequence of {lengths[-1]}")
    rows = [max_tokens // length for length in lengths]
    rows = [n - n % row_multiple if n >= row_multiple else n for n in rows]
    return tuple(zip(rows, lengths, strict=True))


def plan_batches(shapes: Shapes, lengths: np.ndarray, rng: np.random.Generator | None) -> Plan:
    """Assigns every row to exactly one batch of the shortest bucket that holds the row.

    The rows left over after the full batches of a bucket move to the next longer bucket. At most
    one batch of an epoch is therefore partial, and rows of padding fill that batch.

    Args:
        lengths: length of each row.
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
    limits = [length for _, length in shapes]
    bucket_of = np.searchsorted(limits, np.arange(limits[-1] + 1)).astype(np.int16)
    buckets = bucket_of[lengths[order]]
    rows, cuts, assigned, carried = [], [], 0, order[:0]
    for bucket, (size, length) in enumerate(shapes):
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
        size, length = shapes[int(bucket_of[lengths[carried].max()])]
        rows += [carried, np.full(size - len(carried), -1, dtype)]
        cuts.append(np.array([[assigned, assigned + size, length]], dtype))
    table = np.concatenate(cuts)  # (S, 3)
    return Plan(np.concatenate(rows), table[rng.permutation(len(table))] if rng else table)


def choose_lengths(lengths: np.ndarray, count: int, multiple: int) -> list[int]:
    """Chooses the padded lengths with the least padding in total, by dynamic programming.

    The source and target of a translation pair have the same padded length. On Multi30k with 8
    batch shapes, 87.6% of the tokens in a batch are then real tokens, not padding. Separate lengths
    for source and target would raise this share only to 87.8%.

    Returns:
        At most `count` padded lengths in ascending order. The last one is the maximum of `lengths`,
        rounded up to a multiple of `multiple`.
    """
    lengths = np.asarray(lengths)
    counts = np.bincount(lengths)  # number of rows of each length from 0 on
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


def plan_pools(
    count: int, size: int, rng: np.random.Generator, lengths: np.ndarray | None = None
) -> list[Batch]:
    """Deals examples to batches of exactly `size`, by `lengths` if given, without the remainder."""
    order = rng.permutation(count)
    if lengths is not None:
        pools = (order[part] for part in in_parts(count, _POOL_BATCHES * size))
        order = np.concatenate([pool[np.argsort(lengths[pool])] for pool in pools])
    # (N,) -> (N / B, B)
    batches = order[: count // size * size].reshape(-1, size)
    return [Batch(rows) for rows in rng.permutation(batches)]


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

    section: ClassVar[str] = "data.mixing"

    limit: Count = 524_288
    temperature: Annotated[float, Ge(1)] = 1.0

    def rates(self, counts: np.ndarray) -> np.ndarray:
        """Computes the mixing rates of N tasks."""
        rates = np.minimum(counts, self.limit) ** (1.0 / self.temperature)
        return rates / rates.sum()

    def make_draw(self, tasks: np.ndarray) -> Draw:
        """Returns a function that draws the N examples of an epoch at the mixing rates.

        The function takes a NumPy generator and returns example indices `(N,)`, grouped by task.
        Within an epoch, an example occurs twice only if every other example of its task occurs at
        least once.
        """
        members = [np.flatnonzero(tasks == task) for task in range(tasks.max() + 1)]
        rates = self.rates(np.array([len(indices) for indices in members]))

        def draw(rng: np.random.Generator) -> np.ndarray:
            drawn, counts = [], rng.multinomial(len(tasks), rates)
            for indices, n in zip(members, counts, strict=True):
                if n:
                    passes = range(-(-n // len(indices)))
                    drawn.append(np.concatenate([rng.permutation(indices) for _ in passes])[:n])
            return np.concatenate(drawn)

        return draw


def row_groups(
    counts: Sequence[int],
    shuffled_rows: int,
    seed: tuple[int, int] | None,
    start_row: int,
    repeat: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields the shards of each group, the order of its rows from `start_row` on, and the epoch.

    In each epoch, the shards are shuffled and divided into groups of consecutive shards. The rows
    are then shuffled within each group. The shard counts of any two groups differ by at most one.

    Args:
        counts: number of rows of each of the S shards.
        shuffled_rows: maximum number of rows in a group. If any shard has more rows, every shard
            forms a group of its own.
        seed: `None` means the order of the shards.
        repeat: whether to continue with further epochs forever. If False, the groups end with the
            epoch that contains `start_row`.
    """
    shards, sizes = len(counts), np.array(counts)
    groups = -(-shards // max(1, shuffled_rows // max(counts)))
    bounds = [group * shards // groups for group in range(groups + 1)]
    first_epoch, skipped = divmod(start_row, int(sizes.sum()))
    for epoch in itertools.count(first_epoch) if repeat else [first_epoch]:
        # No group has the index -1, so that the seed differs from the seeds of all groups.
        order = _shuffled(shards, seed, epoch, -1)
        for group, bound in enumerate(itertools.pairwise(bounds)):
            members = order[slice(*bound)]
            size = int(sizes[members].sum())
            if skipped < size:
                yield members, _shuffled(size, seed, epoch, group)[skipped:], epoch
            skipped = max(skipped - size, 0)


def _shuffled(count: int, seed: tuple[int, int] | None, epoch: int, group: int) -> np.ndarray:
    if seed is None:
        return np.arange(count)
    with tf.device("CPU"):
        order, key = tf.range(count, dtype=tf.int64), fold_in(seed, epoch, group)
        return tf.random.experimental.stateless_shuffle(order, key, alg="philox").numpy()


def fold_in(seed: tuple[int, int], *integers: int) -> tf.Tensor:
    # A fixed algorithm draws the same numbers on all devices. TensorFlow's default does not.
    folded = tf.constant(seed, tf.int64)
    for integer in integers:
        integer = tf.constant(integer, tf.int64)
        folded = tf.random.experimental.stateless_fold_in(folded, integer, alg="philox")
    return folded


def process_seed(seed: int, process: int) -> int:
    """Returns an independent seed for one of several training processes.

    Process 0 gets `seed`. Every other process gets 63 bits from a child of NumPy's
    `SeedSequence(seed)`. The index of the process is the child's spawn key.
    """
    if not process:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(process,))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
