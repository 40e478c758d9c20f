"""An exponential moving average of a model's weights."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf


class ExponentialMovingAverage:
    """Shadow copies `s += (1 - d) * (w - s)` of variables, started at their first values.

    `d = min(decay, (1 + t) / (10 + t))` after update t, so that the random first weights are soon
    forgotten: at decay 0.999 the bound itself is reached after 9,000 updates.

    Args:
        variables: the float variables to follow, already built.
        decay: from 0 to below 1.
    """

    def __init__(self, variables: Sequence[keras.Variable], decay: float):
        self.decay = decay
        self.variables = list(variables)
        self.shadows = [
            keras.Variable(
                variable.numpy(), trainable=False, dtype=variable.dtype, name=f"average_{index}"
            )
            for index, variable in enumerate(self.variables)
        ]

    def update(self, updates) -> None:
        """Moves the shadows towards the weights; runs inside a graph.

        Args:
            updates: scalar, the optimizer steps taken so far, this one included.
        """
        updates = tf.cast(updates, tf.float32)
        decay = tf.minimum(self.decay, (1.0 + updates) / (10.0 + updates))
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            difference = tf.convert_to_tensor(variable) - tf.convert_to_tensor(shadow)
            shadow.value.assign_add(tf.cast(1.0 - decay, difference.dtype) * difference)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """While the context lasts, the model's weights are the averages."""
        weights = [np.array(variable) for variable in self.variables]
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            variable.assign(shadow)
        try:
            yield
        finally:
            for variable, weight in zip(self.variables, weights, strict=True):
                variable.assign(weight)
