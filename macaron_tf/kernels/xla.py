"""SwishRNN's recurrence and dropout for TensorFlow graphs that XLA compiles.

The loops of the recurrence compute only values that depend on the state. The array x is time-major,
`(L, B, R)`, so that each step reads consecutive rows (on a TPU, whole tiles of 8 x 128). The
gradient is hand-derived, as in the module `recurrence`. One loop computes all `G[t] = dc[t] +
J[t+1] G[t+1]`. After the loop, the gradients of x, alpha and beta are computed from G for all steps
at once.

Each loop iteration computes UNROLL steps. Each of the UNROLL steps writes to a separate array, at
the index of the iteration. The TPU compiler then converts an iteration to one or two fusions, keeps
the state in registers, and does not initialize the arrays. For 32 x 512 positions of width 2048,
the compiler estimates 0.8 million cycles for the forward pass and 1.5 million for the backward
pass. If all steps wrote to one array, the estimates would be 2.1 and 4.4 million cycles, and 0.6
million for initializing each array. If an iteration wrote its steps as one slice, the estimate
would be 3.6 million cycles or more. Arrays have the dtype of x, and the loops compute in float32.

The recurrence uses TensorFlow ops that exist only under XLA.
"""

import math

import tensorflow as tf
from keras import ops
from tensorflow.compiler.tf2xla.python import xla

from macaron_tf.kernels.recurrence import (
    derivatives,
    from_steps,
    marks_of,
    one_step,
    reset_at_starts,
    to_steps,
)

UNROLL = 4  # steps per iteration of a loop
# Value that marks padding in x. A separate mask (S, 1) would make a loop take 5/3 of the time. A
# minus infinity at a real position becomes NaN, and so do all later states.
PADDING = -math.inf


def recurrence(x, alpha, beta, step_size, mask, start):
    """Computes SwishRNN's recurrence (see `swish_recurrence`).

    `alpha` and `beta`, both `(R,)`, and the initial state `start`, `(B, k, R)`, must be float32.
    """
    batch, length, _ = ops.shape(x)
    c = recurrence_over_chunks(to_chunks(x, step_size), length, alpha, beta, step_size, mask, start)
    return from_chunks(c, batch, length)


def to_chunks(x, step_size):
    """Divides a batch-major array `(B, L, W)` into n time-major chunks `(n, S, W)`.

    A chunk has UNROLL k consecutive positions of all B sequences, so S = UNROLL k B, with k =
    `step_size`. The last chunk is padded with zeros.
    """
    x = to_steps(x, UNROLL * step_size)
    iterations, positions, batch, width = ops.shape(x)  # integers if static, otherwise tensors
    # (n, UNROLL k, B, W) -> (n, S, W)
    return ops.reshape(x, (iterations, positions * batch, width))


def from_chunks(x, batch, length):
    """Converts the chunks of `to_chunks` back to a batch-major array: `(n, S, W) -> (B, L, W)`."""
    iterations, rows, width = ops.shape(x)
    # (n, S, W) -> (n, S / B, B, W)
    return from_steps(ops.reshape(x, (iterations, rows // batch, batch, width)), length)


def recurrence_over_chunks(x, length, alpha, beta, step_size, mask=None, start=None):
    """Computes the recurrence on chunks `(n, S, R)` from `to_chunks`, to states in the same layout.

    See `swish_recurrence` for the other arguments. `start` is `(B, k, R)`.
    """
    iterations, rows, width = ops.shape(x)
    size = rows // UNROLL
    marks = [to_chunks(mark, step_size) for mark in marks_of(mask)]
    if start is None:
        start = tf.zeros((size, width))
    else:  # (B, k, R) -> (k, B, R) -> (k B, R)
        start = tf.reshape(tf.transpose(start, (1, 0, 2)), (size, width))
    steps = -(-length // step_size)  # ceil(L / k)
    return _with_gradient(iterations, steps, size, *marks)(x, alpha, beta, start)


def _with_gradient(iterations, steps, size, keep=None, follows=None):
    """Returns a function that computes the recurrence, with a hand-derived gradient.

    It has `iterations` steps of `size` = k B rows. `keep` is 0 at padding, `follows` where a text
    begins, both in the layout of `to_chunks`.
    """
    static_size = size if isinstance(size, int) else None

    def read(rows, step):
        """Reads the rows of one step, or of the last one: `(n S, R) -> (size, R)`."""
        rows = xla.dynamic_slice(rows, [step * size, 0], [size, rows.shape[-1]])
        # The slice loses its static shape, which the state of a loop must have.
        return tf.cast(tf.ensure_shape(rows, (static_size, rows.shape[-1])), tf.float32)

    def write(arrays, index, rows):
        """Writes `rows[j] (size, R)` into `arrays[j] (iterations, size, R)` at index `index`."""
        return [
            xla.dynamic_update_slice(array, tf.cast(rows_of_step, array.dtype)[None], [index, 0, 0])
            for array, rows_of_step in zip(arrays, rows, strict=True)
        ]

    def flat(array):
        return tf.reshape(array, (-1, array.shape[-1]))

    def real_mask(x):
        return None if keep is None else tf.cast(x != PADDING, tf.float32)

    def follows_at(step):
        return None if follows is None else read(flat(follows), step)

    def loop(compute_iteration, state, num_arrays, like):
        """Calls `compute_iteration(i, state) -> (state, rows)` in a loop, and returns all rows.

        The rows are `num_arrays` arrays `(iterations, size, R)`, initialized with an element of
        `like`: with a constant, XLA would fill one array for all loops of a model, and copy it for
        each loop.
        """
        empty = tf.broadcast_to(like[0, 0, 0], (iterations, size, like.shape[-1]))

        def body(i, state, *arrays):
            state, rows = compute_iteration(i, state)
            return i + 1, state, *write(arrays, i, rows)

        _, _, *arrays = tf.while_loop(
            lambda i, *_: i < iterations,
            body,
            (tf.constant(0), state, *[empty] * num_arrays),
            maximum_iterations=iterations,
        )
        return arrays

    def total(array):
        """Computes sums `(iterations, size, R) -> (R,)` by matrix products.

        For a plain sum, XLA's CPU compiler generates strided memory accesses, which take ten times
        as long. The TPU compiler turns the products back into float32 sums if each product has at
        most 32 rows.
        """
        group = math.gcd(static_size or 1, 8)
        groups = tf.reshape(array, (-1, group, array.shape[-1]))
        num_groups = iterations * size // group
        group_sums = tf.matmul(tf.ones((num_groups, 1, group)), groups)[:, 0]  # (num_groups, R)
        return tf.matmul(tf.ones((1, num_groups)), group_sums)[0]

    @tf.custom_gradient
    def forward(x, alpha, beta, start):
        if keep is not None:
            padded, nan = (tf.constant(value, x.dtype) for value in (PADDING, math.nan))
            x = tf.where(keep > 0, tf.where(x == padded, nan, x), padded)
        x = _with_barrier(x)
        x_rows = flat(x)

        def forward_iteration(i, c):
            rows = [c]
            for j in range(UNROLL):
                step = i * UNROLL + j
                new = read(x_rows, step)
                rows.append(one_step(rows[-1], alpha, beta, new, real_mask(new), follows_at(step)))
            return rows[-1], rows

        # The first array contains the state before each iteration. The other arrays contain the
        # state after each step.
        states = loop(forward_iteration, start, 1 + UNROLL, x)

        def backward(dc):
            dc_rows = flat(_with_barrier(dc))

            def backward_iteration(reverse_index, g):
                i, rows = iterations - 1 - reverse_index, []
                for j in reversed(range(UNROLL)):
                    step = i * UNROLL + j
                    next_x = read(x_rows, step + 1)
                    follow = follows_at(step + 1)
                    u = reset_at_starts(read(flat(states[1 + j]), i), follow) - next_x
                    passed = derivatives(u, real_mask(next_x), alpha, beta)[0] * g
                    passed = reset_at_starts(passed, follow)
                    # The last step receives no gradient from a later step.
                    g = read(dc_rows, step) + tf.where(step + 1 < steps, passed, 0.0)
                    rows.append(g)
                    # Two fusions of two steps cost less than one fusion of four.
                    if 2 * j == UNROLL:
                        g = xla.optimization_barrier(g)[0]
                return g, rows[::-1]

            dx, dalpha, dbeta = [], 0.0, 0.0
            for j, g in enumerate(loop(backward_iteration, tf.zeros_like(start), UNROLL, dc)):
                # The loop wrote the last chunk first.
                g = tf.cast(tf.reverse(g, [0]), tf.float32)
                x_j = tf.cast(x[:, j * size : (j + 1) * size], tf.float32)
                follow = None if follows is None else follows[:, j * size : (j + 1) * size]
                u = reset_at_starts(tf.cast(states[j], tf.float32), follow) - x_j
                jacobian, u, q = derivatives(u, real_mask(x_j), alpha, beta)
                passed, gq = g * jacobian, g * q
                dx.append(tf.cast(g - passed, x.dtype))
                dalpha += total(gq * u)
                dbeta += total(gq)
                if j == 0:
                    dstart = reset_at_starts(passed, follow)[0]
            return _with_barrier(tf.concat(dx, 1)), dalpha, dbeta, dstart

        return tf.concat(states[1:], 1), backward

    return forward


def dropout(x, rate: float, seed):
    """Applies dropout: zeroes elements with probability `rate`, and divides the rest by 1 - `rate`.

    For each dropout, TensorFlow's own op derives a key by 10 rounds of Philox in 344 operations,
    40% of all operations of T5's training step. This function derives the key from `seed`, `(2,)`
    integers, by `fmix32` of MurmurHash3 (Appleby 2011).
    """
    key = tf.cast(seed, tf.uint32)
    key = _xor_shift(key, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    key = _xor_shift(key, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.shape(x),
        key=tf.bitcast(_xor_shift(key, 16)[None], tf.uint64),  # (1, 2) -> (1,)
        counter=tf.zeros((2,), tf.uint64),
        alg=tf.random.Algorithm.AUTO_SELECT.value,  # the default generator of the device
        dtype=tf.uint32,
    )
    kept = bits >= tf.constant(round(rate * 2**32), tf.uint32)
    return tf.where(kept, x * tf.cast(1.0 / (1.0 - rate), x.dtype), tf.zeros_like(x))


def _xor_shift(key, by: int):
    return tf.bitwise.bitwise_xor(key, tf.bitwise.right_shift(key, tf.constant(by, key.dtype)))


def _with_barrier(array):
    """Returns the array behind a barrier, so that XLA keeps the memory layout of its op."""
    return xla.optimization_barrier(array)[0]
