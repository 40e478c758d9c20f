"""Distribution of the rows of each batch to several replicas."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from macaron_tf.data.batches import prefetch


def distributed(
    strategy: tf.distribute.Strategy, dataset: tf.data.Dataset, per_worker: bool = False
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Divides the rows of each batch among the replicas, in order and without padding.

    B counts the rows of all replicas. Some replicas get one row more than others, or no row. With
    one replica, the dataset is returned unchanged.

    Args:
        dataset: batches of tensors `(B, ...)` in dicts or tuples, equal on every worker unless
            `per_worker`. Scalars are copied to all replicas.
        per_worker: whether each worker provides its own batches, divided among its own replicas.
    """
    if strategy.num_replicas_in_sync == 1:
        return dataset
    # flat_map loses the infinite cardinality, without which Keras checks for the end at each step.
    endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    steps = tf.data.INFINITE_CARDINALITY if endless else tf.data.UNKNOWN_CARDINALITY

    def replica_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        total = local if per_worker else context.num_replicas_in_sync
        first = 0 if per_worker else context.input_pipeline_id * local

        def split(*batch):
            batch = batch if len(batch) > 1 else batch[0]
            indices = tf.data.Dataset.range(first, first + local)
            return indices.map(
                lambda index: tf.nest.map_structure(lambda x: _share(x, index, total), batch)
            )

        return prefetch(dataset.flat_map(split), steps)

    return strategy.distribute_datasets_from_function(replica_rows)


def _share(tensor, index: tf.Tensor, count: int):
    """Returns share `index` of `count` of a tensor `(B, ...)`, `(B / count, ...)`, or a scalar."""
    if tensor.shape.rank == 0:
        return tensor
    static_size, row_shape = tensor.shape[0], tensor.shape[1:]
    rows = tf.shape(tensor, tf.int64)[0] if static_size is None else static_size
    begin, end = (-(-i * rows // count) for i in (index, index + 1))
    share = tensor[begin:end]
    if isinstance(share, tf.Tensor):
        is_even = static_size is not None and static_size % count == 0
        share.set_shape([static_size // count if is_even else None, *row_shape])
    return share


def spread_seeds(strategy: tf.distribute.Strategy, states: Sequence[keras.Variable]) -> None:
    """Gives each replica another dropout seed: `states (2,)` of Keras are a seed and a counter."""
    if strategy.num_replicas_in_sync == 1 or not states:
        return
    replica_indices = strategy.experimental_local_results(  # indices of this worker's replicas
        tf.function(lambda: strategy.run(_replica_index), autograph=False)()
    )
    for state in states:
        copies = strategy.experimental_local_results(state.value)
        seed, counter = copies[0].numpy().tolist()
        for copy, replica_index in zip(copies, replica_indices, strict=True):
            # With a large odd stride, runs with adjacent seeds share no replica seed. The result
            # fits into 32 bits.
            replica_seed = (seed + 0x9E3779B1 * int(replica_index)) % 2**31
            copy.assign(tf.constant([replica_seed, counter], copy.dtype))


def _replica_index() -> tf.Tensor:
    return tf.identity(tf.distribute.get_replica_context().replica_id_in_sync_group)
