"""What a task takes of a language model: a weighted sum of its layers."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="macaron_tf")
class LayerMixture(keras.layers.Layer):
    """`gamma sum_j softmax(s)_j h_j`; it starts as the layers' mean.

    Call arguments: `layers (..., J, D)`, the J layers of each position. Returns `(..., D)`.

    References: Peters et al. 2018 (ELMo), eq. 1.
    """

    def build(self, layers_shape):
        self.scores = self.add_weight(
            name="scores", shape=(layers_shape[-2],), initializer="zeros", autocast=False
        )
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.built = True

    @property
    def weights_of_layers(self):
        """`softmax(s)`, `(J,)` float32."""
        return ops.softmax(ops.convert_to_tensor(self.scores))

    def call(self, layers):
        weights = ops.cast(self.weights_of_layers, self.compute_dtype)
        return self.scale * ops.einsum("...jd,j->...d", layers, weights)

    def compute_output_shape(self, layers_shape):
        return (*layers_shape[:-2], layers_shape[-1])
