"""Normalizations by name; LayerNorm in one pass over memory where there are native kernels."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.kernels import runs_native


def normalization(
    norm_type: str = "layer", epsilon: float = 1e-5, affine: bool = True, **kwargs
) -> keras.layers.Layer:
    """The normalization of that name, over the last axis, in float32 under any policy.

    Args:
        norm_type: `"layer"`, or `"rms"`: neither centred nor offset (T5's).
        epsilon: added to the variance, or to the mean square.
        affine: whether there is a trained scale and, of `"layer"`, an offset.

    References: Ba et al. 2016; Zhang and Sennrich 2019 (RMSNorm).
    """
    if check_choice("norm_type", norm_type, ("layer", "rms")) == "layer":
        return LayerNormalization(epsilon=epsilon, center=affine, scale=affine, **kwargs)
    if not affine:
        raise ValueError("norm_type='rms' always has a scale: set affine=True")
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

    With the native kernel the rate is taken to the nearest 1 / 65,536, and other places are
    dropped for the same seed than without it.

    Call arguments: `x` of any shape; `training`, without which it does nothing.
    """

    def call(self, inputs, training=False):
        if training and 0 < self.rate < 1 and self.noise_shape is None and runs_native(inputs):
            from macaron_tf.kernels import native

            return native.dropout(inputs, self.rate, self.seed_generator.next())
        return super().call(inputs, training=training)
