"""Adam's update of a variable as one operation of TensorFlow's."""

import keras
import tensorflow as tf
from keras import ops


class _FusedUpdate:
    """`update_step` of Keras's Adam in one pass over a variable and its two moments, not fifteen.

    Within a strategy's scope, where a variable is many, it is Keras's own.
    """

    def update_step(self, gradient, variable, learning_rate):
        if tf.distribute.has_strategy():
            return super().update_step(gradient, variable, learning_rate)
        index = self._get_variable_index(variable)
        step = ops.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=ops.power(ops.cast(self.beta_1, variable.dtype), step),
            beta2_power=ops.power(ops.cast(self.beta_2, variable.dtype), step),
            lr=ops.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=ops.cast(gradient, variable.dtype),
        )


@keras.saving.register_keras_serializable(package="macaron_tf", name="Adam")
class FusedAdam(_FusedUpdate, keras.optimizers.Adam):
    """`keras.optimizers.Adam` with its arguments, without `amsgrad`."""


@keras.saving.register_keras_serializable(package="macaron_tf", name="AdamW")
class FusedAdamW(_FusedUpdate, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with its arguments, without `amsgrad`."""
