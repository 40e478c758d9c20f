"""Arrays of another library into our layers: fused where ours are fused, shapes checked."""

from collections.abc import Callable, Sequence

import keras
import numpy as np

from macaron_tf.errors import UserError

# (name of a part) -> (kernel (inputs, outputs), bias (outputs,) or None)
DenseReader = Callable[[str], tuple[np.ndarray, np.ndarray | None]]


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Sets a variable; a UserError names it where the shapes differ."""
    if tuple(variable.shape) != value.shape:
        raise UserError(
            f"the weights do not fit the model: {variable.path} has shape "
            f"{tuple(variable.shape)}, what was read has {value.shape}."
        )
    variable.assign(value)


def assign_dense(
    layer: keras.layers.Dense, parts: Sequence[tuple[np.ndarray, np.ndarray | None]]
) -> None:
    """Sets a Dense layer to `parts`, (kernel, bias) each, side by side; None for no bias."""
    kernels, biases = zip(*parts, strict=True)
    assign(layer.kernel, np.concatenate(kernels, axis=1))
    if layer.use_bias:
        assign(layer.bias, np.concatenate(biases, axis=0))


def assign_attention(layer: keras.layers.Layer, read: DenseReader) -> None:
    """Sets a `MultiHeadAttention` from its parts "query", "key", "value" and "output".

    Args:
        layer: built.
        read: gives a part's kernel, (D, H d) or (H d, D) for the output, and bias.
    """
    if layer.cross:
        assign_dense(layer.query, [read("query")])
        assign_dense(layer.key_value, [read("key"), read("value")])
    else:
        assign_dense(layer.query_key_value, [read("query"), read("key"), read("value")])
    assign_dense(layer.output_projection, [read("output")])


def assign_norm(layer: keras.layers.LayerNormalization, scale_offset: Sequence[np.ndarray]) -> None:
    """Sets a LayerNorm to (scale (D,), offset (D,))."""
    scale, offset = scale_offset
    assign(layer.gamma, scale)
    assign(layer.beta, offset)
