"""SwishRNN's recurrence and dropout for TensorFlow graphs that XLA compiles.

The loops of the recurrence compute only values that depend on the state. The array x is time-major,
`(L, B, R)`, so that each step reads consecutive rows (on a TPU, whole tiles of 8 x 128). The
gradient is hand-derived, as in the module `recurrence`. One loop computes all `G[t] = dc[t] +
J[t+1] G[t+1]`. After the loop, the gradients of x, alpha and beta are computed from G for all steps
at once.

Each loop iteration (a "turn" in the names below) computes TURN steps. Each of the TURN steps writes
to a separate array, at the index of the iteration. The TPU compiler then converts an iteration to
one or two fusions, keeps the state in registers, and does not initialize the arrays. For 32 x 512
positions of width 2048, the compiler estimates 0.8 million cycles for the forward pass and 1.5
million for the backward pass. If all steps wrote to one array, the estimates would be 2.1 and 4.4
million cycles, and 0.6 million for initializing each array. If an iteration wrote its steps as one
slice, the estimate would be 3.6 million cycles or more. Arrays have the dtype of x, and the loops
compute in float32.

The recurrence uses TensorFlow ops that exist only under XLA.
"""

import math

import tensorflow as tf
from keras import ops
from tensorflow.compiler.tf2xla.python import xla

from macaron_tf.kernels.recurrence import (
    derivatives,
    following,
    from_steps,
    in_steps,
    marks_of,
    one_step,
)

TURN = 4  # steps per iteration of a loop
# Value that marks padding in x. A separate mask (S, 1) would make a loop take 5/3 of the time. A
# minus infinity at a real position becomes NaN, and so do all later states.
PADDED = -math.inf


def recurrence(x, alpha, beta, step_size, mask, start):
    """Computes SwishRNN's recurrence (see `swish_recurrence`).

    The arrays `alpha`, `beta` and the initial state `start`, `(B, k, R)`, must be float32.
    """
    batch, length, _ = ops.shape(x)
    c = over_turns(in_turns(x, step_size), length, alpha, beta, step_size, mask, start)
    return from_turns(c, batch, length)


def in_turns(x, step_size):
    """Divides a batch-major array `(B, L, W)` into n time-major chunks `(n, S, W)`.

    Each loop iteration reads one chunk. A chunk contains TURN k consecutive positions of all B
    sequences, where k is `step_size`, so S = TURN k B. The last chunk is padded with zeros.
    """
    x = in_steps(x, TURN * step_size)
    turns, positions, batch, width = ops.shape(x)  # integers if static, otherwise tensors
    # (n, TURN k, B, W) -> (n, S, W)
    return ops.reshape(x, (turns, positions * batch, width))


def from_turns(x, batch, length):
    """Converts the chunks of `in_turns` back to a batch-major array: `(n, S, W) -> (B, L, W)`."""
    turns, rows, width = ops.shape(x)
    # (n, S, W) -> (n, S / B, B, W)
    return from_steps(ops.reshape(x, (turns, rows // batch, batch, width)), length)


def over_turns(x, length, alpha, beta, step_size, mask=None, start=None):
    """Computes the recurrence on chunks from `in_turns`, and returns states in the same layout.

    Args:
        x: output of `in_turns`, `(n, S, R)`.
        length: sequence length L.
        alpha: parameter of Swish, `(R,)`.
        beta: parameter of Swish, `(R,)`.
        step_size: k.
        mask: `(B, L)`, as in `swish_recurrence`.
        start: initial state, `(B, k, R)`; `None` means zeros.
    """
    turns, rows, width = ops.shape(x)
    size = rows // TURN
    marks = [in_turns(mark, step_size) for mark in marks_of(mask)]
    if start is None:
        start = tf.zeros((size, width))
    else:  # (B, k, R) -> (k, B, R) -> (k B, R)
        start = tf.reshape(tf.transpose(start, (1, 0, 2)), (size, width))
    steps = -(-length // step_size)  # ceil(L / k)
    return _with_gradient(turns, steps, size, *marks)(x, alpha, beta, start)


def _with_gradient(turns, steps, size, keep=None, follows=None):
    """Returns a function that computes the recurrence, with a hand-derived gradient.

    Args:
        turns: number n of loop iterations.
        steps: number of steps.
        size: number of rows per step, k B.
        keep: 0 at padding, in the layout of `in_turns`; `None` means no padding.
        follows: 0 where a text begins, in the layout of `in_turns`; `None` means that no text
            begins.
    """
    known = size if isinstance(size, int) else None

    def read(rows, step):
        """Reads the rows of one step: `(n S, R) -> (size, R)`.

        For a step past the end, the function reads the rows of the last step.
        """
        rows = xla.dynamic_slice(rows, [step * size, 0], [size, rows.shape[-1]])
        # The slice loses its static shape, which the state of a loop must have.
        return tf.cast(tf.ensure_shape(rows, (known, rows.shape[-1])), tf.float32)

    def write(arrays, turn, rows):
        """Writes `rows[j] (size, R)` into `arrays[j] (turns, size, R)` at index `turn`."""
        return [
            xla.dynamic_update_slice(array, tf.cast(each, array.dtype)[None], [turn, 0, 0])
            for array, each in zip(arrays, rows, strict=True)
        ]

    def flat(array):
        return tf.reshape(array, (-1, array.shape[-1]))

    def kept(x):
        return None if keep is None else tf.cast(x != PADDED, tf.float32)

    def followed(step):
        return None if follows is None else read(flat(follows), step)

    def loop(turn, state, number, like):
        """Calls `turn(i, state) -> (state, rows)` in a loop, and returns the collected rows.

        The arrays are initialized with an element of `like`. XLA then detects that the initial
        values are never read. If the initial value were a constant, XLA would fill one array for
        all loops of a model, and copy this array for each loop.

        Args:
            turn: function that computes the TURN steps of one iteration.
            state: initial state.
            number: number of arrays in `rows`.
            like: array from which the results take dtype and width.

        Returns:
            List of `number` arrays `(turns, size, R)`.
        """
        empty = tf.broadcast_to(like[0, 0, 0], (turns, size, like.shape[-1]))

        def body(i, state, *arrays):
            state, rows = turn(i, state)
            return i + 1, state, *write(arrays, i, rows)

        _, _, *arrays = tf.while_loop(
            lambda i, *_: i < turns,
            body,
            (tf.constant(0), state, *[empty] * number),
            maximum_iterations=turns,
        )
        return arrays

    def total(array):
        """Computes sums `(turns, size, R) -> (R,)` by matrix products.

        For a plain sum, XLA's CPU compiler generates strided memory accesses, which take ten times
        as long. The TPU compiler turns the products back into float32 sums if each product has at
        most 32 rows.
        """
        group = math.gcd(known or 1, 8)
        groups = tf.reshape(array, (-1, group, array.shape[-1]))
        number = turns * size // group
        each = tf.matmul(tf.ones((number, 1, group)), groups)[:, 0]  # (number, R)
        return tf.matmul(tf.ones((1, number)), each)[0]

    @tf.custom_gradient
    def run(x, alpha, beta, start):
        if keep is not None:
            padded, nan = (tf.constant(value, x.dtype) for value in (PADDED, math.nan))
            x = tf.where(keep > 0, tf.where(x == padded, nan, x), padded)
        x = _fixed(x)
        x_rows = flat(x)

        def forward(i, c):
            rows = [c]
            for j in range(TURN):
                step = i * TURN + j
                new = read(x_rows, step)
                rows.append(one_step(rows[-1], alpha, beta, new, kept(new), followed(step)))
            return rows[-1], rows

        # The first array contains the state before each iteration. The other arrays contain the
        # state after each step.
        states = loop(forward, start, 1 + TURN, x)

        def gradient(dc):
            dc_rows = flat(_fixed(dc))

            def backward(done, g):
                i, rows = turns - 1 - done, []
                for j in reversed(range(TURN)):
                    step = i * TURN + j
                    after = read(x_rows, step + 1)
                    follow = followed(step + 1)
                    u = following(read(flat(states[1 + j]), i), follow) - after
                    passed = derivatives(u, kept(after), alpha, beta)[0] * g
                    passed = following(passed, follow)
                    # The last step receives no gradient from a later step.
                    g = read(dc_rows, step) + tf.where(step + 1 < steps, passed, 0.0)
                    rows.append(g)
                    if 2 * j == TURN:  # Two fusions of two steps cost less than one fusion of four.
                        g = xla.optimization_barrier(g)[0]
                return g, rows[::-1]

            dx, dalpha, dbeta = [], 0.0, 0.0
            for j, g in enumerate(loop(backward, tf.zeros_like(start), TURN, dc)):
                # The loop wrote the last chunk first.
                g = tf.cast(tf.reverse(g, [0]), tf.float32)
                x_j = tf.cast(x[:, j * size : (j + 1) * size], tf.float32)
                follow = None if follows is None else follows[:, j * size : (j + 1) * size]
                u = following(tf.cast(states[j], tf.float32), follow) - x_j
                jacobian, u, q = derivatives(u, kept(x_j), alpha, beta)
                passed, gq = g * jacobian, g * q
                dx.append(tf.cast(g - passed, x.dtype))
                dalpha += total(gq * u)
                dbeta += total(gq)
                if j == 0:
                    dstart = following(passed, follow)[0]
            return _fixed(tf.concat(dx, 1)), dalpha, dbeta, dstart

        return tf.concat(states[1:], 1), gradient

    return run


def dropout(x, rate: float, seed):
    """Applies dropout: zeroes elements with probability `rate`, and divides the rest by 1 - `rate`.

    For each dropout, TensorFlow's own op derives a key by 10 rounds of Philox in 344 operations. In
    a training step with T5, 40% of all operations serve this purpose. This function derives the key
    by `fmix32` of MurmurHash3 (Appleby 2011) instead.

    Args:
        x: tensor of any shape.
        rate: dropout rate.
        seed: `(2,)` integers.
    """
    key = tf.cast(seed, tf.uint32)
    key = _shifted(key, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    key = _shifted(key, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.shape(x),
        key=tf.bitcast(_shifted(key, 16)[None], tf.uint64),  # (1, 2) -> (1,)
        counter=tf.zeros((2,), tf.uint64),
        alg=tf.random.Algorithm.AUTO_SELECT.value,  # the default generator of the device
        dtype=tf.uint32,
    )
    kept = bits >= tf.constant(round(rate * 2**32), tf.uint32)
    return tf.where(kept, x * tf.cast(1.0 / (1.0 - rate), x.dtype), tf.zeros_like(x))


def _shifted(key, by: int):
    return tf.bitwise.bitwise_xor(key, tf.bitwise.right_shift(key, tf.constant(by, key.dtype)))


def _fixed(array):
    """Returns the array behind an optimization barrier.

    The barrier prevents XLA from changing the memory layout of the op that computes the array.
    """
    return xla.optimization_barrier(array)[0]
