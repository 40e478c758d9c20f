"""The first updates of a run, where they train a part of the network alone."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class FirstStage:
    """Which part of a network the first updates train; all else stays as it is, to the bit.

    Args:
        steps: how many updates.
        variables: that part.
    """

    def __init__(self, steps: int, variables: Sequence[keras.Variable]):
        self.steps = steps
        self._trained = {id(variable) for variable in variables}

    def trains(self, variable: keras.Variable) -> bool:
        """Whether a variable is of that part."""
        return id(variable) in self._trained

    def lasts(self, done: keras.Variable) -> tf.Tensor:
        """Whether the update after `done` ones is of this stage: a scalar boolean."""
        return tf.convert_to_tensor(done) < self.steps

    def masked(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], done
    ) -> list[tf.Tensor]:
        """The gradients, 0 where the update trains nothing: neither counts in their norm.

        Args:
            gradients: of the variables, in order.
            variables: trained by the run.
            done: updates before this one.
        """
        rest = tf.where(self.lasts(done), 0.0, 1.0)
        return [
            gradient if self.trains(variable) else gradient * tf.cast(rest, gradient.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
