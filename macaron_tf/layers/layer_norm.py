"""Layer normalization, trained in one pass over memory where there are native kernels."""

import keras
from keras import ops

from macaron_tf.kernels import runs_native


@keras.saving.register_keras_serializable(package="macaron_tf")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's `LayerNormalization`, over the last axis.

    Call arguments: `x (..., D)`; `training`: where it is not, stock operations only, so that a
    model can be exported from anywhere.

    References: Ba et al. 2016.
    """

    def call(self, inputs, training=None):
        if training and self.axis == [-1] and not self.rms_scaling and runs_native(inputs):
            from macaron_tf.kernels import native_rows

            y = native_rows.layer_norm(inputs, self.gamma, self.beta, self.epsilon)
            return ops.cast(y, self.compute_dtype)
        return super().call(inputs)
