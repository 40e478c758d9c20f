"""Native dropout, layer normalization and GELU in Python, and their gradients.

Each is one pass over memory where TensorFlow's own take three to ten, and keeps only its input
for the gradient. They are for the CPU, float32 and bfloat16 (float32 within), not under XLA, and
for training: a graph that holds them cannot be served.
"""

import tensorflow as tf

from macaron_tf.kernels.native_library import operations


def dropout(x: tf.Tensor, rate: float, key) -> tf.Tensor:
    """Keeps an element with probability 1 - rate, scaled so that its expected value is x.

    Args:
        x: `(..., D)`, float32 or bfloat16.
        rate: from 0 up to, not including, 1; taken to the nearest 1 / 65,536.
        key: `(2,)` integers, of the random bits: the same key drops the same places.

    Returns:
        Of x's shape and type.

    Raises:
        UserError: the operations are not available.
        ValueError: no such rate.

    References: Srivastava et al. 2014; bits: Salmon et al. 2011, Philox 4x32-10.
    """
    return operations().macaron_tf_dropout(x=x, key=tf.cast(key, tf.uint32), rate=rate)


def layer_norm(x: tf.Tensor, scale, offset, epsilon: float) -> tf.Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset` over the last axis.

    Args:
        x: `(..., D)`, float32 or bfloat16.
        scale, offset: `(D,)`, or None for ones and zeros.

    Returns:
        Of x's shape and type. There is no second derivative.

    Raises:
        UserError: the operations are not available.

    References: Ba et al. 2016.
    """
    width = (x.shape[-1],)
    scale = tf.ones(width) if scale is None else tf.cast(scale, tf.float32)
    offset = tf.zeros(width) if offset is None else tf.cast(offset, tf.float32)
    return operations().macaron_tf_layer_norm(x=x, scale=scale, offset=offset, epsilon=epsilon)[0]


def bias_gelu(x: tf.Tensor, bias, approximate: bool = False) -> tf.Tensor:
    """`GELU(x + bias)`, exact or, with `approximate`, by its tanh form.

    Args:
        x: `(..., D)`, float32 or bfloat16.
        bias: `(D,)`.

    Returns:
        Of x's shape and type. There is no second derivative.

    Raises:
        UserError: the operations are not available.

    References: Hendrycks and Gimpel 2016.
    """
    bias = tf.cast(bias, tf.float32)
    return operations().macaron_tf_bias_gelu(x=x, bias=bias, approximate=approximate)


@tf.RegisterGradient("MacaronTf>Dropout")
def _dropout_gradient(operation, dy):
    key = operation.inputs[1]
    return dropout(dy, operation.get_attr("rate"), key), None


@tf.RegisterGradient("MacaronTf>LayerNorm")
def _layer_norm_gradient(operation, dy, _):
    x, scale, _ = operation.inputs
    return operations().macaron_tf_layer_norm_grad(
        x=x, scale=scale, statistics=operation.outputs[1], dy=dy
    )


@tf.RegisterGradient("MacaronTf>BiasGelu")
def _bias_gelu_gradient(operation, dy):
    x, bias = operation.inputs
    approximate = operation.get_attr("approximate")
    return operations().macaron_tf_bias_gelu_grad(x=x, bias=bias, dy=dy, approximate=approximate)
