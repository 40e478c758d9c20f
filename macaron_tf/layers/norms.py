"""Normalization layers by name, and LayerNorm and dropout with fast kernels."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.kernels import runs_native
from macaron_tf.kernels.choice import select_implementation


def normalization(
    norm_type: str = "layer", epsilon: float = 1e-5, affine: bool = True, **kwargs
) -> keras.layers.Layer:
    """Returns a normalization layer over the last axis, which computes in float32 under any policy.

    Args:
        norm_type: `"layer"`, `"unbiased"` (LayerNorm without offset, as in ModernBERT) or `"rms"`
            (RMSNorm, as in T5).
        epsilon: number added to the variance, or to the mean square in RMSNorm.
        affine: whether a `"layer"` has a trained scale and offset. Other norms always have a scale.

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
    norm.supports_masking = True  # lets Keras's masks pass through, as in LayerNorm
    return norm


@keras.saving.register_keras_serializable(package="macaron_tf")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`, with a native kernel in training (see `runs_native`).

    The kernel needs one pass over memory. Without `training`, the layer runs only standard
    operations, so that every backend can export the model.

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
    """Keras's `Dropout` with faster kernels.

    On a CPU, Keras's own `Dropout` can take 10% of a training step. The native kernel rounds the
    rate to a multiple of 1 / 65,536. With the same seed, the native kernel, XLA, JAX and
    TensorFlow's standard operations drop different elements.
    """

    def call(self, inputs, training=False):
        if not training or not 0 < self.rate < 1 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        implementation = select_implementation("auto", dtype)
        if implementation == "native":
            from macaron_tf.kernels.native import dropout
        elif implementation == "xla":
            from macaron_tf.kernels.xla import dropout
        elif keras.backend.backend() == "jax":
            from macaron_tf.kernels.jax_dropout import dropout
        else:
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator.next())
