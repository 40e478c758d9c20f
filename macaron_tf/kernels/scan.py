"""The reference implementation of the recurrence: the backend's scan, differentiated by it."""

import keras
from keras import ops

from macaron_tf.kernels.steps import from_steps, in_steps, keep_in_steps, start_in_steps


def recurrence(x, alpha, beta, step_size, mask, start):
    """See `swish_recurrence`; the vectors and `start (B, k, R)` are float32."""
    xs = (in_steps(ops.cast(x, "float32"), step_size), keep_in_steps(mask, step_size))
    c = scan(lambda c, inputs: one_step(c, *inputs, alpha, beta), start_in_steps(start), xs)
    return ops.cast(from_steps(c, ops.shape(x)[1]), x.dtype)


def one_step(c, x, keep, alpha, beta):
    """`Swish(c - x) + x` of `(k, B, R)`; where `keep (k, B, 1)` is 0, c."""
    u = c - x
    new = ops.sigmoid(alpha * u + beta) * u + x
    return new if keep is None else ops.where(keep > 0, new, c)


def scan(step, start, inputs: tuple, reverse: bool = False):
    """All states of `c = step(c, inputs[i])`, stacked in front.

    `tf.scan` on TensorFlow, for `keras.ops.scan` does not compile under XLA there.

    Args:
        step: `(c, tuple of arrays or None) -> c`.
        start: the state before the first step.
        inputs: arrays of n steps, or None.
        reverse: from the last step to the first.
    """
    given = [array for array in inputs if array is not None]

    def with_none(arrays):
        left = iter(arrays)
        return tuple(None if array is None else next(left) for array in inputs)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # not on JAX, where TensorFlow need not be installed

        return tf.scan(
            lambda c, arrays: step(c, with_none(arrays)), given, initializer=start, reverse=reverse
        )

    def carry(c, arrays):
        c = step(c, with_none(arrays))
        return c, c

    _, states = ops.scan(carry, start, given, reverse=reverse)
    return states
