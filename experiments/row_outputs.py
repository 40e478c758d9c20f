"""Outputs of a network for many tokenized rows."""

import functools
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution.replicas import ReplicaMap


class RowOutputs:
    """A network's float32 outputs, computed batch by batch.

    One `tf.function` with a relaxed signature serves all shapes and is traced once; it reads the
    network's current weights. Replicas of the strategy in whose scope it is made share the batches.

    Args:
        network: built, of a dict of ids to one tensor.
        names: its inputs.
        row_shape: (R,) where an example has R rows at once.
    """

    def __init__(self, network: keras.Model, names: Sequence[str], row_shape: tuple[int, ...] = ()):
        spec = tf.TensorSpec((None, *row_shape, None), tf.int32)
        # A partial: TensorFlow counts the traces of a method over all of its objects, and would
        # warn of a grid's one trace a network.
        forward = functools.partial(_forward, network, names)
        signature = [spec] * len(names)
        function = tf.function(forward, input_signature=signature, autograph=False)
        self._map = ReplicaMap(tf.distribute.get_strategy(), function)

    def fill(
        self, found: np.ndarray, batches: Iterable[tuple[np.ndarray, tuple[np.ndarray, ...]]]
    ) -> np.ndarray:
        """Writes the outputs of rows into an array, and returns it.

        Args:
            found: (N, ...) float32; shorter outputs fill the beginnings of their axes.
            batches: the rows' numbers, -1 for padding, and the inputs in the order of `names`.
        """
        numbers: list[np.ndarray] = []  # of (B,)

        def inputs() -> Iterator[tuple[np.ndarray, ...]]:
            for rows, arrays in batches:
                numbers.append(rows)
                yield arrays

        for batch, result in enumerate(self._map(inputs())):
            rows, outputs = numbers[batch], result["outputs"]
            filled = tuple(slice(size) for size in outputs.shape[1:])
            found[(rows[rows >= 0], *filled)] = outputs[rows >= 0]
        return found


def _forward(
    network: keras.Model, names: Sequence[str], *inputs: tf.Tensor
) -> dict[str, tf.Tensor]:
    outputs = network(dict(zip(names, inputs, strict=True)), training=False)
    return {"outputs": tf.cast(outputs, tf.float32)}  # (B, ...)
