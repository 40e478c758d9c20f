"""The processes that train together: who writes, and how they come to one decision."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError

# What a collective operation ends with when a worker is gone; it takes up to a minute to be sure.
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


class Workers:
    """The worker processes of a strategy; one, for all but `MultiWorkerMirroredStrategy`.

    Args:
        strategy: whose.

    Attributes:
        count: how many there are.
        several: whether there are more than this one.
        number: which one this is, from 0.
        chief: whether this one writes logs and checkpoints: the first worker.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.count = 1
        if self.several:
            self.count = len(strategy.cluster_resolver.cluster_spec().as_dict()["worker"])
        self.number = strategy.cluster_resolver.task_id if self.several else 0
        self.chief = self.number == 0
        self._sums = tf.function(self._summed, autograph=False, reduce_retracing=True)

    def totals(self, values: Sequence[float] | np.ndarray) -> list:
        """The sums of some numbers over the workers, the same on all; waits for every one.

        Args:
            values: this worker's, of the same shape on all; whole numbers up to 2^53 stay exact.
        """
        if not self.several:
            return list(values)
        totals = self._sums(tf.constant(np.asarray(values, np.float64)))
        return totals.numpy().tolist()

    def of_chief(self, values: Sequence[float]) -> list[float]:
        """The chief's numbers, on all workers."""
        return self.totals([value if self.chief else 0.0 for value in values])

    def gathered(self, mine: bytes) -> list[bytes]:
        """Every worker's bytes, in the order of the workers."""
        if not self.several:
            return [mine]
        lengths = self.totals([float(len(mine) * (i == self.number)) for i in range(self.count)])
        table = np.zeros((self.count, int(max(lengths))))
        table[self.number, : len(mine)] = np.frombuffer(mine, np.uint8)
        rows = np.asarray(self.totals(table)).astype(np.uint8)
        return [row[: int(n)].tobytes() for row, n in zip(rows, lengths, strict=True)]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While the context lasts, the death of another worker is one sentence.

        Raises:
            UserError: another worker has died, or cannot be reached any more.
        """
        try:
            yield
        except _GONE as error:
            if not self.several:
                raise
            raise UserError(
                f"worker {self.number} lost another one: find out why "
                "in its output, then give every worker its command again; they go on from the "
                f"last checkpoint ({error.message.partition(chr(10))[0]})"
            ) from error

    def _summed(self, values: tf.Tensor) -> tf.Tensor:
        local = len(self.strategy.extended.worker_devices)

        def brought() -> tf.Tensor:
            # A worker's first replica brings the numbers, the others bring zeros.
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.where(number % local == 0, values, tf.zeros_like(values))

        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, self.strategy.run(brought), axis=None
        )
