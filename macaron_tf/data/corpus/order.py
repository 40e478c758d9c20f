"""Seeded order of the rows of a corpus, computed by TensorFlow operations."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# A fixed algorithm draws the same numbers on all devices. TensorFlow's default does not.
ALGORITHM = "philox"


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """Seeded order of the rows of a corpus, with a new order in each epoch.

    In each epoch, the shards are shuffled and divided into groups of consecutive shards. The rows
    are then shuffled within each group. The shard counts of any two groups differ by at most one.

    Attributes:
        first_rows: index of the first row of each shard in the unshuffled split.
        shuffled_rows: maximum number of rows in a group. If any shard has more rows, every shard
            forms a group of its own.
        seed: two integers that seed the order. `None` means the order of the files.
    """

    paths: tuple[str, ...]
    rows: tuple[int, ...]
    first_rows: tuple[int, ...]
    shuffled_rows: int
    seed: tuple[int, int] | None

    @functools.cached_property
    def group_count(self) -> int:
        """Number of groups of shards in an epoch."""
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
        """Returns batches of the rows from `start_row` on.

        Of the rows before `start_row`, the dataset reads only the rows in the group of `start_row`.

        Args:
            decode: function from N records to a tensor `(N, ...)`. The function is called once per
                group, before shuffling, because shuffling and batching records as strings takes
                twice as long.
            repeat: whether to continue with further epochs forever. If False, the dataset ends with
                the epoch that contains `start_row`.

        Returns:
            Dataset of tuples: the decoded rows `(B, ...)`, their indices in the unshuffled split
            `(B,)` int64, and their epochs `(B,)` int64. Reading raises a tf.errors.OpError if a
            shard is missing or damaged or has an unexpected number of records.
        """
        epoch, offset = divmod(start_row, sum(self.rows))
        with tf.device("CPU"):
            order = self._shards(tf.constant(epoch, tf.int64)).numpy()
        starts = [self._first_shard(group) for group in range(self.group_count)]
        sizes = np.add.reduceat(np.array(self.rows)[order], starts)  # (groups,)
        ends = np.cumsum(sizes)
        group = int(np.searchsorted(ends, offset, side="right"))
        first_group = epoch * self.group_count + group
        skipped = offset - int(ends[group] - sizes[group])  # number of rows to skip in this group
        end = tf.int64.max if repeat else (epoch + 1) * self.group_count
        group_indices = tf.data.Dataset.range(first_group, end)

        @tf.autograph.experimental.do_not_convert
        def group_rows(group_index: tf.Tensor) -> tuple[tf.Tensor, ...]:
            start = tf.where(group_index == first_group, skipped, 0)
            return tuple(column[start:] for column in self._group(group_index, decode))

        # The prefetch reads the next group while the model consumes this group.
        groups = group_indices.map(group_rows, num_parallel_calls=1).prefetch(1)
        return groups.rebatch(batch_size, drop_remainder)

    def _group(
        self, group_index: tf.Tensor, decode: Callable[[tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """Reads a group, and shuffles its rows unless `seed` is `None`."""
        epoch, group = group_index // self.group_count, group_index % self.group_count
        members = self._shards(epoch)[self._first_shard(group) : self._first_shard(group + 1)]
        paths = tf.gather(tf.constant(self.paths), members)
        counts = tf.gather(tf.constant(self.rows, tf.int64), members)
        expected = tf.reduce_sum(counts)
        records = tf.data.TFRecordDataset(paths).batch(tf.int64.max).get_single_element()
        # TFRecord does not notice if a file is cut off between two records.
        record_count = tf.size(records, tf.int64)
        with tf.control_dependencies([tf.debugging.assert_equal(record_count, expected)]):
            rows = decode(records)
        # For each shard, the index of its first row in the split minus its index in the group.
        shifts = tf.gather(tf.constant(self.first_rows, tf.int64), members)
        shifts -= tf.cumsum(counts, exclusive=True)
        row_numbers = tf.range(expected) + tf.repeat(shifts, counts)  # (N,)
        epochs = tf.fill([expected], epoch)
        if self.seed is None:
            return rows, row_numbers, epochs
        order = _permutation(expected, self.seed, epoch, group)
        return tf.gather(rows, order), tf.gather(row_numbers, order), epochs

    def _first_shard(self, group):
        """Returns the position of a group's first shard in the shard order of an epoch."""
        return group * len(self.paths) // self.group_count

    def _shards(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the indices of all S shards in the reading order of an epoch, `(S,)` int64."""
        if self.seed is None:
            return tf.range(len(self.paths), dtype=tf.int64)
        # No group has the index -1, so that the seed differs from the seeds of all groups.
        return _permutation(tf.constant(len(self.paths), tf.int64), self.seed, epoch, -1)


def _permutation(count: tf.Tensor, seed: tuple[int, int], *integers: tf.Tensor | int) -> tf.Tensor:
    """Draws a permutation of 0 to count - 1, `(count,)` int64."""
    seed = tf.constant(seed, tf.int64)
    for integer in integers:
        integer = tf.cast(integer, tf.int64)
        seed = tf.random.experimental.stateless_fold_in(seed, integer, alg=ALGORITHM)
    return tf.random.experimental.stateless_shuffle(
        tf.range(count, dtype=tf.int64), seed, alg=ALGORITHM
    )
