"""A function of batches, applied on all devices at once: evaluation and decoding."""

import itertools
import pickle
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.distribution.workers import Workers

Batch = tuple[np.ndarray, ...]
Result = dict[str, np.ndarray]


class ReplicaMap:
    """Applies a function to batches, each replica to another one, on all workers together.

    Args:
        strategy: with one replica, batches are simply taken one after the other.
        function: a `tf.function` with an input signature of tensors, that returns a dict of
            tensors; whatever variables it reads were made in the strategy's scope.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, function: tf.types.experimental.GenericFunction
    ):
        self.strategy = strategy
        self.function = function
        self.workers = Workers(strategy)
        # The lambda: a tf.function that is given itself would be merged over the replicas.
        self._step = tf.function(
            lambda batch: strategy.run(lambda *tensors: function(*tensors), args=batch),
            autograph=False,
            reduce_retracing=True,
        )

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Result]:
        """The results, in the order of the batches; all workers give the same batches.

        Args:
            batches: arrays as the function's signature says.
        """
        replicas = self.strategy.num_replicas_in_sync
        if replicas == 1:
            for batch in batches:
                yield _fetched(self.function(*batch))
            return
        batches = iter(batches)
        while found := list(itertools.islice(batches, replicas)):
            # The last replicas of the last round repeat a batch, and nobody looks.
            full = found + [found[-1]] * (replicas - len(found))
            given = tuple(self._dealt([batch[i] for batch in full]) for i in range(len(full[0])))
            results = self._local(self._step(given))
            parts = self.workers.gathered(pickle.dumps(results))
            yield from [result for part in parts for result in pickle.loads(part)][: len(found)]

    def _dealt(self, arrays: list[np.ndarray]):
        """One of each replica's tensors, from those of all replicas."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
        )

    def _local(self, results: dict) -> list[Result]:
        copies = {k: self.strategy.experimental_local_results(v) for k, v in results.items()}
        count = len(next(iter(copies.values())))
        return [_fetched({k: copies[k][i] for k in copies}) for i in range(count)]


def _fetched(result: dict[str, tf.Tensor]) -> Result:
    return {name: value.numpy() for name, value in result.items()}
