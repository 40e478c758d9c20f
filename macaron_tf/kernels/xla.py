"""The recurrence under XLA: a loop that reads one slice and writes one slice a step.

The rows of x are put in time order, `(n k B, R)`, so that a step is a run of whole rows (on a TPU:
of whole tiles of 8 x 128) and moves no data within an array. The gradient is derived by hand (see
`loop`): it needs x and the states alone, and sums alpha's and beta's part as it goes. It is not
written over the gradient that comes in, nor are several steps read and written as one slice: by a
TPU's compiler the loops take 15 times and 1.7 times as long so. Arrays are kept in the type of x;
within the loops all is float32.

Its ops exist under XLA alone.
"""

import tensorflow as tf
from keras import ops
from tensorflow.compiler.tf2xla.python import xla

from macaron_tf.kernels.loop import derivatives
from macaron_tf.kernels.scan import one_step
from macaron_tf.kernels.steps import count, from_steps, in_steps, keep_in_steps, start_in_steps

TURN = 4  # steps in one turn of a loop


def recurrence(x, alpha, beta, step_size, mask, start):
    """See `swish_recurrence`; the vectors and `start (B, k, R)` are float32."""
    batch, length, width = ops.shape(x)  # numbers where they are known, else tensors
    steps = count(length, step_size)
    # Whole turns: the steps added at the end come after all others and carry no gradient.
    steps += -steps % TURN

    def rows(array):
        """`(n, k, B, W) -> (n k B, W)`, n now a multiple of TURN."""
        array = tf.pad(array, ((0, steps - tf.shape(array)[0]), (0, 0), (0, 0), (0, 0)))
        return tf.reshape(array, (steps * step_size * batch, array.shape[-1]))

    keep = None if mask is None else rows(keep_in_steps(mask, step_size))
    # (k, B, R) -> (k B, R)
    start = tf.reshape(start_in_steps(start), (-1, width))
    run = _with_gradient(keep, steps, step_size * batch)
    c = run(rows(in_steps(x, step_size)), alpha, beta, start)
    # (n k B, R) -> (n, k, B, R)
    return from_steps(tf.reshape(c, (steps, step_size, batch, width)), length)


def _with_gradient(keep, steps, size):
    """The loops over `steps` runs of `size` rows."""
    known = size if isinstance(size, int) else None

    def read(array, step):
        rows = xla.dynamic_slice(array, [step * size, 0], [size, array.shape[-1]])
        # Without it the loop's state would lose what is known of its shape.
        return tf.cast(tf.ensure_shape(rows, (known, array.shape[-1])), tf.float32)

    def write(array, rows, step):
        rows = tf.cast(rows, array.dtype)
        return xla.dynamic_update_slice(array, rows, [step * size, 0])

    def kept(step):
        return None if keep is None else read(keep, step)

    def turns(body, state):
        """`body(step, *state)` for every step, TURN of them in one turn of the loop."""

        def turn(step, *state):
            for _ in range(TURN):
                state = body(step, *state)
                step += 1
            return step, *state

        _, *state = tf.while_loop(
            lambda step, *_: step < steps,
            turn,
            (tf.constant(0), *state),
            maximum_iterations=steps // TURN,
        )
        return state

    @tf.custom_gradient
    def run(x, alpha, beta, start):
        x = _fixed(x)

        def forward(step, c, states):
            c = one_step(c, read(x, step), kept(step), alpha, beta)
            return c, write(states, c, step)

        _, states = turns(forward, (start, tf.zeros_like(x)))
        states = _fixed(states)

        def gradient(dc):
            dc = _fixed(dc)

            def backward(done, passed, dx, dalpha, dbeta):
                step = steps - 1 - done
                before = tf.where(step > 0, read(states, tf.maximum(step - 1, 0)), start)
                jacobian, u, q = derivatives(before - read(x, step), kept(step), alpha, beta)
                g = read(dc, step) + passed
                passed, gq = g * jacobian, g * q
                return passed, write(dx, g - passed, step), dalpha + gq * u, dbeta + gq

            zeros = tf.zeros_like(start)
            state = (zeros, tf.zeros_like(x), zeros, zeros)
            passed, dx, dalpha, dbeta = turns(backward, state)
            return _fixed(dx), tf.reduce_sum(dalpha, 0), tf.reduce_sum(dbeta, 0), passed

        return states, gradient

    return run


def _fixed(array):
    """The array as it lies: what the loops read is not laid out anew for those who made it."""
    return xla.optimization_barrier(array)[0]
