"""Initializers that Keras does not have."""

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="macaron_tf")
class NarrowColumns(keras.initializers.Initializer):
    """Another initializer's matrix, its first columns multiplied by a factor.

    For the query's part of a fused projection whose scores are not divided by sqrt(d): it starts
    1/sqrt(d) as wide, so that attention starts as it would with the division.

    Args:
        initializer: of the whole matrix.
        columns: how many are multiplied.
        factor: by what.

    References: Raffel et al. 2020 (T5), its released code.
    """

    def __init__(self, initializer, columns: int, factor: float):
        self.initializer = keras.initializers.get(initializer)
        self.columns = columns
        self.factor = factor

    def __call__(self, shape, dtype=None):
        factors = np.where(np.arange(shape[-1]) < self.columns, self.factor, 1.0)
        values = self.initializer(shape, dtype)
        return ops.multiply(values, ops.cast(factors, values.dtype))

    def get_config(self):
        return {
            "initializer": keras.initializers.serialize(self.initializer),
            "columns": self.columns,
            "factor": self.factor,
        }
