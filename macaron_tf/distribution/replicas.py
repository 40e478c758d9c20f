"""Distribution of batches to several replicas.

In training, the rows of each batch are divided among the replicas. In evaluation, each replica gets
a whole batch.
"""

import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import prefetched
from macaron_tf.distribution.strategy import Workers

Batch = tuple[np.ndarray, ...]
Result = dict[str, np.ndarray]


class ReplicaMap:
    """Map of a function over batches. The replicas of all workers process one batch each.

    Args:
        strategy: distribution strategy.
        function: `tf.function` with an input signature of tensors, which returns a dict of tensors.
            Its variables must have been created in the scope of `strategy`.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, function: tf.types.experimental.GenericFunction
    ):
        self.strategy = strategy
        self.function = function
        self.workers = Workers(strategy)
        # Inside a plain lambda, because strategy.run would merge a tf.function over the replicas.
        self._step = tf.function(
            lambda batch: strategy.run(lambda *tensors: function(*tensors), args=batch),
            autograph=False,
            reduce_retracing=True,
        )

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Result]:
        """Yields the function's result for each batch, in order, on every worker.

        All workers must pass the same batches.
        """
        replicas = self.strategy.num_replicas_in_sync
        if replicas == 1:
            for batch in batches:
                yield _fetched(self.function(*batch))
            return
        batches = iter(batches)
        while found := list(itertools.islice(batches, replicas)):
            # In the last round, surplus replicas repeat a batch, and their results are dropped.
            full = found + [found[-1]] * (replicas - len(found))
            given = tuple(self._dealt([batch[i] for batch in full]) for i in range(len(full[0])))
            results = self._local(self._step(given))
            parts = self.workers.gathered(pickle.dumps(results))
            yield from [result for part in parts for result in pickle.loads(part)][: len(found)]

    def _dealt(self, arrays: list[np.ndarray]):
        """Returns a per-replica value that holds one array of `arrays` on each replica."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
        )

    def _local(self, results: dict) -> list[Result]:
        copies = {k: self.strategy.experimental_local_results(v) for k, v in results.items()}
        count = len(next(iter(copies.values())))
        return [_fetched({k: copies[k][i] for k in copies}) for i in range(count)]


def _fetched(result: dict[str, tf.Tensor]) -> Result:
    return {name: value.numpy() for name, value in result.items()}


def distributed(
    strategy: tf.distribute.Strategy, dataset: tf.data.Dataset, per_worker: bool = False
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Divides the rows of each batch among the replicas, in order and without padding.

    If the batch size B is not a multiple of the number of replicas, some replicas get one row more
    than other replicas. If B is less than the number of replicas, some replicas get no row. B does
    not depend on the number of replicas.

    Args:
        strategy: distribution strategy with the replicas.
        dataset: batches of tensors `(B, ...)` in dicts or tuples. The batches must be equal on
            every worker unless `per_worker` is set. Scalars are copied to all replicas.
        per_worker: whether each worker provides its own batches. The rows of a batch are then
            divided only among the replicas of its worker.
    """
    if strategy.num_replicas_in_sync == 1:
        return dataset
    # flat_map loses the infinite cardinality, without which Keras checks for the end at each step.
    endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    steps = tf.data.INFINITE_CARDINALITY if endless else tf.data.UNKNOWN_CARDINALITY

    def shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        total = local if per_worker else context.num_replicas_in_sync
        first = 0 if per_worker else context.input_pipeline_id * local

        def split(*batch):
            batch = batch if len(batch) > 1 else batch[0]
            numbers = tf.data.Dataset.range(first, first + local)
            return numbers.map(
                lambda number: tf.nest.map_structure(lambda x: _share(x, number, total), batch)
            )

        return prefetched(dataset.flat_map(split), steps)

    return strategy.distribute_datasets_from_function(shares)


def _share(tensor, number: tf.Tensor, count: int):
    """Returns share `number` of the `count` shares of a tensor: `(B, ...)` -> `(B / count, ...)`.

    If `count` does not divide B, some shares have one row more than other shares. A scalar is
    returned unchanged.
    """
    if tensor.shape.rank == 0:
        return tensor
    static, rest = tensor.shape[0], tensor.shape[1:]
    rows = tf.shape(tensor, tf.int64)[0] if static is None else static
    begin, end = (-(-each * rows // count) for each in (number, number + 1))
    share = tensor[begin:end]
    if isinstance(share, tf.Tensor):
        even = static is not None and static % count == 0
        share.set_shape([static // count if even else None, *rest])
    return share


def spread_seeds(strategy: tf.distribute.Strategy, states: Sequence[keras.Variable]) -> None:
    """Gives each replica a different dropout seed. Keras uses the same seed on all replicas.

    Args:
        states: states `(2,)` of Keras seed generators, which hold a seed and a counter.
    """
    if strategy.num_replicas_in_sync == 1 or not states:
        return
    numbers = strategy.experimental_local_results(  # indices of this worker's replicas
        tf.function(lambda: strategy.run(_replica_number), autograph=False)()
    )
    for state in states:
        copies = strategy.experimental_local_results(state.value)
        seed, counter = copies[0].numpy().tolist()
        for copy, number in zip(copies, numbers, strict=True):
            # With a large odd stride, runs with adjacent seeds share no replica seed. The result
            # fits into 32 bits.
            own = (seed + 0x9E3779B1 * int(number)) % 2**31
            copy.assign(tf.constant([own, counter], copy.dtype))


def _replica_number() -> tf.Tensor:
    return tf.identity(tf.distribute.get_replica_context().replica_id_in_sync_group)
