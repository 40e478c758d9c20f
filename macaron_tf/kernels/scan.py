"""The reference implementation of the recurrence: the backend's scan, differentiated by it."""

import keras
from keras import ops


def recurrence(x, keep, alpha, beta, start):
    """n steps of `c = Swish(c - x) + x`; see `swish_recurrence.IMPLEMENTATIONS`.

    `tf.scan` on TensorFlow, for `keras.ops.scan` does not compile under XLA there.
    """

    def step(c, inputs):
        x, keep = inputs
        u = c - x  # (B, k, R)
        new = ops.sigmoid(alpha * u + beta) * u + x
        return new if keep is None else ops.where(keep > 0, new, c)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # not on JAX, where TensorFlow need not be installed

        if keep is None:
            return tf.scan(lambda c, x: step(c, (x, None)), x, initializer=start)
        return tf.scan(step, (x, keep), initializer=start)

    def carry(c, inputs):
        c = step(c, inputs if keep is not None else (inputs, None))
        return c, c

    _, c = ops.scan(carry, start, x if keep is None else (x, keep))
    return c
