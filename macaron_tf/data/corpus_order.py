"""The order in which a corpus's rows are dealt, as TensorFlow operations alone.

No Python runs while the rows are read, so that a tf.data service can do it in another process.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# Named, so that every device draws the same numbers from a seed.
_ALGORITHM = "philox"


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """Shards in random order, then the rows of some shards among each other; anew each epoch.

    The groups of an epoch are the same number of shards each, as near as can be, so that a
    group's number tells its shards without a look at the groups before it.

    Args:
        paths: of the shards, none of them empty.
        rows: number of records of each.
        first_rows: number of the first row of each, which no shuffling changes.
        shuffled_rows: greatest number of rows of a group, a single larger shard excepted.
        seed: two numbers that decide the order; None takes the shards and rows as they lie.
    """

    paths: tuple[str, ...]
    rows: tuple[int, ...]
    first_rows: tuple[int, ...]
    shuffled_rows: int
    seed: tuple[int, int] | None

    @property
    def groups(self) -> int:
        """Number of groups of an epoch."""
        shards = max(1, self.shuffled_rows // max(self.rows))
        return -(-len(self.paths) // shards)

    def batches(
        self,
        start_row: int,
        batch_size: int,
        decode: Callable[[tf.Tensor], tf.Tensor],
        repeat: bool,
        drop_remainder: bool,
    ) -> tf.data.Dataset:
        """The rows from one on; of those before it at most one group is read.

        Args:
            start_row: number of the first row, counted from the start of epoch 0.
            batch_size: B.
            decode: makes a tensor `(N, ...)` of N records, a group at once: its rows are shuffled
                and cut into batches in half the time that strings take.
            repeat: go on with the next epochs for ever, a batch across two of them included, or
                end with the one begun.
            drop_remainder: leave out a last batch that is not full.

        Returns:
            Dataset of a tensor `(B, ...)`, the numbers of its rows `(B,)` int64 and their epochs
            `(B,)` int64. It raises a tf.errors.OpError where a shard is missing,
            damaged, or has another number of records than it should.
        """
        epoch, offset = divmod(start_row, sum(self.rows))
        with tf.device("CPU"):
            order = self._shards(tf.constant(epoch, tf.int64)).numpy()
        starts = [self._first_shard(group) for group in range(self.groups)]
        sizes = np.add.reduceat(np.array(self.rows)[order], starts)  # (groups,)
        ends = np.cumsum(sizes)
        group = int(np.searchsorted(ends, offset, side="right"))
        first = epoch * self.groups + group
        passed = offset - int(ends[group] - sizes[group])  # rows of the first group
        if repeat:
            numbers = tf.data.Dataset.counter(first)
        else:
            numbers = tf.data.Dataset.range(first, (epoch + 1) * self.groups)

        def rows(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start = tf.where(number == first, passed, 0)
            return tuple(column[start:] for column in self._group(number, decode))

        # The next group is read while this one is used.
        groups = numbers.map(rows, num_parallel_calls=1).prefetch(1)
        return groups.rebatch(batch_size, drop_remainder)

    def _group(
        self, number: tf.Tensor, decode: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """The rows `(N, ...)` of a group, their numbers and epochs, `(N,)` int64.

        Groups count on from epoch to epoch.
        """
        epoch, group = number // self.groups, number % self.groups
        members = self._shards(epoch)[self._first_shard(group) : self._first_shard(group + 1)]
        paths = tf.gather(tf.constant(self.paths), members)
        counts = tf.gather(tf.constant(self.rows, tf.int64), members)
        expected = tf.reduce_sum(counts)
        records = tf.data.TFRecordDataset(paths).batch(tf.int64.max).get_single_element()
        # A file cut between two records is whole to TFRecord.
        found = tf.size(records, tf.int64)
        with tf.control_dependencies([tf.debugging.assert_equal(found, expected)]):
            rows = decode(records)
        # Of each shard: its first row's number, less its first row's place in the group.
        shifts = tf.gather(tf.constant(self.first_rows, tf.int64), members)
        shifts -= tf.cumsum(counts, exclusive=True)
        row_numbers = tf.range(expected) + tf.repeat(shifts, counts)  # (N,)
        epochs = tf.fill([expected], epoch)
        if self.seed is None:
            return rows, row_numbers, epochs
        order = _permutation(expected, _mixed(self._epoch_seed(epoch), group))
        return tf.gather(rows, order), tf.gather(row_numbers, order), epochs

    def _first_shard(self, group):
        """Where a group begins in the epoch's order of shards."""
        return group * len(self.paths) // self.groups

    def _shards(self, epoch: tf.Tensor) -> tf.Tensor:
        """The numbers of all shards, `(S,)` int64, in the order of an epoch."""
        if self.seed is None:
            return tf.range(len(self.paths), dtype=tf.int64)
        # Groups count from 0: no group draws what the shards do.
        seed = _mixed(self._epoch_seed(epoch), tf.constant(-1, tf.int64))
        return _permutation(tf.constant(len(self.paths), tf.int64), seed)

    def _epoch_seed(self, epoch: tf.Tensor) -> tf.Tensor:
        return _mixed(tf.constant(self.seed, tf.int64), epoch)


def _mixed(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """A seed, `(2,)` int64, for each number."""
    return tf.random.experimental.stateless_fold_in(seed, number, alg=_ALGORITHM)


def _permutation(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The numbers below a count in random order, `(count,)` int64."""
    return tf.random.experimental.stateless_shuffle(
        tf.range(count, dtype=tf.int64), seed, alg=_ALGORITHM
    )
