"""Weights of Keras layers, of Keras 3 or tf_keras or from their checkpoints, by path."""

from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.encoder_weights import Dense, Norm
from macaron_tf.layers.dense import activation

_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "linear")


class KerasArrays:
    """Arrays by path, each found by the end of its path: `layer_0/query/kernel` in any model.

    Args:
        arrays: path -> array.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays

    @classmethod
    def of_layer(cls, layer: keras.layers.Layer) -> "KerasArrays":
        """The weights of a built layer or model of Keras 3."""
        return cls({weight.path: keras.ops.convert_to_numpy(weight) for weight in layer.weights})

    def found(self, path: str) -> Iterator[str]:
        """The whole paths that end so."""
        return (name for name in self.arrays if f"/{name}".endswith(f"/{path}"))

    def array(self, path: str) -> np.ndarray:
        """The one array whose path ends so.

        Raises:
            UserError: there is none, or more than one.
        """
        names = list(self.found(path))
        if len(names) != 1:
            several = f"{len(names)} weights" if names else "no weight"
            raise UserError(f"the model to be read has {several} called {path}.")
        return self.arrays[names[0]]

    def dense(self, path: str) -> Dense:
        """A linear layer's kernel (inputs, outputs) and bias, of attention heads side by side."""
        kernel, bias = self.array(f"{path}/kernel"), self.array(f"{path}/bias")
        # (D, H, d) -> (D, H d) of queries, keys and values, whose bias is (H, d); the output's
        # (H, d, D) -> (H d, D).
        shape = (len(kernel), -1) if bias.ndim > 1 else (-1, kernel.shape[-1])
        return kernel.reshape(shape), bias.reshape(-1)

    def norm(self, path: str) -> Norm:
        """A LayerNorm's scale and offset."""
        return self.array(f"{path}/gamma"), self.array(f"{path}/beta")


def activation_name(function: Callable | str | None) -> str:
    """Our name of an activation, which is known by its values: many are lambdas.

    Args:
        function: takes a float32 array; or Keras's name of it, None for the linear one.

    Raises:
        UserError: ours have none such.
    """
    points = np.linspace(-4, 4, 33, dtype="float32")
    values = np.asarray(keras.activations.get(function)(points))
    for name in _ACTIVATIONS:
        ours = keras.ops.convert_to_numpy(activation(name)(points))
        # The two forms of GELU differ by up to 5e-4.
        if np.allclose(values, ours, atol=2e-6, rtol=0):
            return name
    raise UserError(
        f"the model to be read has the activation {function}: only {', '.join(_ACTIVATIONS)} can "
        "be read."
    )
