"""Orders of the rows of a corpus, which the seed and the step determine."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.buckets import in_parts

BLOCK_ROWS = 1 << 12  # number of rows that are read at once; 4096 rows of 128 ids take 1 MB


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """Seeded order of the rows of S shards, with a new order in each epoch.

    In each epoch, the shards are shuffled and divided into groups of consecutive shards. The rows
    are then shuffled within each group. The shard counts of any two groups differ by at most one.

    Attributes:
        first_rows, rows: number of the first row of each shard, and how many rows it has.
        shuffled_rows: maximum number of rows in a group. If any shard has more rows, every shard
            forms a group of its own.
    """

    first_rows: Sequence[int]
    rows: Sequence[int]
    shuffled_rows: int
    seed: tuple[int, int] | None

    @property
    def group_shards(self) -> int:
        """Maximum number of shards in a group."""
        return max(1, self.shuffled_rows // max(self.rows))

    def blocks(self, start_row: int, repeat: bool) -> Iterator[tuple[np.ndarray, int]]:
        """Yields the numbers of up to `BLOCK_ROWS` rows, and their epoch.

        Args:
            repeat: whether to continue with further epochs forever. If False, the blocks end with
                the epoch that contains `start_row`.
        """
        shards, counts = len(self.rows), np.array(self.rows)
        groups = -(-shards // self.group_shards)
        bounds = [group * shards // groups for group in range(groups + 1)]
        first_epoch, skipped = divmod(start_row, int(counts.sum()))
        for epoch in itertools.count(first_epoch) if repeat else [first_epoch]:
            # No group has the index -1, so that the seed differs from the seeds of all groups.
            order = self._shuffled(np.arange(shards), epoch, -1)
            for group, bound in enumerate(itertools.pairwise(bounds)):
                members = order[slice(*bound)]
                size = int(counts[members].sum())
                if skipped < size:
                    ranges = [np.arange(counts[m]) + self.first_rows[m] for m in members]
                    rows = self._shuffled(np.concatenate(ranges), epoch, group)[skipped:]
                    yield from ((rows[part], epoch) for part in in_parts(len(rows), BLOCK_ROWS))
                skipped = max(skipped - size, 0)

    def _shuffled(self, values: np.ndarray, epoch: int, group: int) -> np.ndarray:
        if self.seed is None:
            return values
        with tf.device("CPU"):
            order = tf.range(len(values), dtype=tf.int64)
            seed = _folded(self.seed, epoch, group)
            order = tf.random.experimental.stateless_shuffle(order, seed, alg="philox")
        return values[order.numpy()]


def _folded(seed: tuple[int, int], *integers: int) -> tf.Tensor:
    # A fixed algorithm draws the same numbers on all devices. TensorFlow's default does not.
    folded = tf.constant(seed, tf.int64)
    for integer in integers:
        integer = tf.constant(integer, tf.int64)
        folded = tf.random.experimental.stateless_fold_in(folded, integer, alg="philox")
    return folded


def uniform_draws(seed: tuple[int, int], chunk: int, size: int) -> np.ndarray:
    """Draws the numbers of a chunk of batches, `(size,)` float64 between 0 and 1."""
    with tf.device("CPU"):
        key = _folded(seed, chunk)
        return tf.random.stateless_uniform([size], key, dtype=tf.float64, alg="philox").numpy()
