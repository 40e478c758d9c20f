"""Activation functions by name: Keras's own and the tanh form of GELU."""

import math
from collections.abc import Callable

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="macaron_tf", name="gelu_tanh")
def gelu_tanh(x):
    """`x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, at most 5e-4 from the exact GELU.

    GPT-2's and Model Garden's; Keras's `"gelu"` is the exact `x Phi(x)`, as in Hugging Face.

    References: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def activation(identifier: str | dict | Callable | None) -> Callable:
    """The function of that name, `"gelu_tanh"` included, as `keras.activations.get`.

    Raises:
        ValueError: there is no such activation.
    """
    if identifier in ("gelu_tanh", "macaron_tf>gelu_tanh"):
        return gelu_tanh
    return keras.activations.get(identifier)
