"""Normalizations by name; LayerNorm in one pass over memory where there are native kernels."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.kernels import runs_native
from macaron_tf.kernels.choice import chosen


def normalization(
    norm_type: str = "layer", epsilon: float = 1e-5, affine: bool = True, **kwargs
) -> keras.layers.Layer:
    """The normalization of that name, over the last axis, in float32 under any policy.

    Args:
        norm_type: `"layer"`; `"unbiased"`: without an offset (ModernBERT's); or `"rms"`: neither
            centred nor offset (T5's).
        epsilon: added to the variance, or to the mean square.
        affine: whether there is a trained scale and, of `"layer"`, an offset.

    References: Ba et al. 2016; Zhang and Sennrich 2019 (RMSNorm).
    """
    check_choice("norm_type", norm_type, ("layer", "unbiased", "rms"))
    if norm_type == "layer":
        return LayerNormalization(epsilon=epsilon, center=affine, scale=affine, **kwargs)
    if not affine:
        raise ValueError(f"norm_type={norm_type!r} always has a scale: set affine=True")
    if norm_type == "unbiased":
        return LayerNormalization(epsilon=epsilon, center=False, **kwargs)
    norm = keras.layers.RMSNormalization(epsilon=epsilon, **kwargs)
    norm.supports_masking = True  # it passes Keras's masks on, as a LayerNorm does
    return norm


@keras.saving.register_keras_serializable(package="macaron_tf")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`, over the last axis.

    Call arguments: `x (..., D)`; `training`: where it is not, stock operations only, so that a
    model can be exported from anywhere.

    References: Ba et al. 2016.
    """

    def call(self, inputs, training=None):
        if training and self.axis == [-1] and not self.rms_scaling and runs_native(inputs):
            from macaron_tf.kernels import native

            y = native.layer_norm(inputs, self.gamma, self.beta, self.epsilon)
            return ops.cast(y, self.compute_dtype)
        return super().call(inputs)


@keras.saving.register_keras_serializable(package="macaron_tf")
class Dropout(keras.layers.Dropout):
    """Keras's `Dropout`, whose CPU form takes a tenth of a training step.

    With the native kernel the rate is taken to the nearest 1 / 65,536. It, XLA and JAX drop other
    places for the same seed than TensorFlow's own operations do.

    Call arguments: `x` of any shape; `training`, without which it does nothing.
    """

    def call(self, inputs, training=False):
        if not training or not 0 < self.rate < 1 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        kernel = chosen("auto", keras.backend.standardize_dtype(inputs.dtype))
        if kernel == "native":
            from macaron_tf.kernels.native import dropout
        elif kernel == "xla":
            from macaron_tf.kernels.xla import dropout
        elif keras.backend.backend() == "jax":
            from macaron_tf.kernels.jax_dropout import dropout
        else:
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator.next())
