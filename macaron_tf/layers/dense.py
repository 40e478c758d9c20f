"""A matrix product with bias and activation, the last two in one where there are native kernels."""

import keras
from keras import ops

from macaron_tf.kernels import runs_native
from macaron_tf.layers.activations import gelu_tanh


@keras.saving.register_keras_serializable(package="macaron_tf")
class Dense(keras.layers.Dense):
    """Keras's `Dense`; a bias and a GELU after it, of either form, are one pass in training.

    Call arguments: `x (..., D)`; `training`: where it is not, stock operations only, so that a
    model can be exported from anywhere. Returns `(..., units)`.
    """

    def call(self, inputs, training=None):
        approximate = {keras.activations.gelu: False, gelu_tanh: True}.get(self.activation)
        if training and self.use_bias and approximate is not None and runs_native(inputs):
            from macaron_tf.kernels import native_rows

            product = ops.matmul(inputs, self.kernel)  # (..., D) x (D, units) -> (..., units)
            return native_rows.bias_gelu(product, self.bias, approximate)
        return super().call(inputs, training=training)
