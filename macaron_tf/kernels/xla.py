"""SwishRNN's recurrence under XLA, in loops that only compute what depends on the state; dropout.

x is in time order, `(L, B, R)`, so that a step is a run of whole rows (on a TPU, of whole tiles of
8 x 128). The gradient is hand-derived as in `recurrence`: one loop computes all
`G[t] = dc[t] + J[t+1] G[t+1]`, and the gradients of x, alpha and beta follow from them after the
loop, for all steps at once.

One iteration of a loop, a turn, has TURN steps, and each of them writes to its own array, at the
index of the turn. A TPU's compiler then makes one or two fusions of a turn, keeps the state in
registers, and does not fill arrays in advance. It estimates, for 32 x 512 positions of width 2048:
0.8 million cycles forward and 1.5 backward; if all steps wrote to one array, 2.1 and 4.4, and 0.6
more to fill each array; if the steps of a turn were written as one slice, 3.6 and more. Arrays have
the dtype of x; the loops compute in float32.

The ops of the recurrence exist only under XLA.
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
# Marks padding in x: with a mask (S, 1) instead, a loop would take two thirds longer. A real x of
# minus infinity becomes NaN, as do all states after it.
PADDED = -math.inf


def recurrence(x, alpha, beta, step_size, mask, start):
    """See `swish_recurrence`; alpha, beta and `start (B, k, R)` are float32."""
    batch, length, _ = ops.shape(x)
    c = over_turns(in_turns(x, step_size), length, alpha, beta, step_size, mask, start)
    return from_turns(c, batch, length)


def in_turns(x, step_size):
    """Brings x to time order: `(B, L, W) -> (n, S, W)`, with the S = TURN k B rows of each turn.

    The last turn is padded with zeros, which come after all real steps.
    """
    x = in_steps(x, TURN * step_size)
    turns, positions, batch, width = ops.shape(x)  # ints if static, else tensors
    # (n, TURN k, B, W) -> (n, S, W)
    return ops.reshape(x, (turns, positions * batch, width))


def from_turns(x, batch, length):
    """Inverse of `in_turns`: `(n, S, W) -> (B, L, W)`."""
    turns, rows, width = ops.shape(x)
    # (n, S, W) -> (n, S / B, B, W)
    return from_steps(ops.reshape(x, (turns, rows // batch, batch, width)), length)


def over_turns(x, length, alpha, beta, step_size, mask=None, start=None):
    """The recurrence for x from `in_turns`, returned in the same layout; the mask is `(B, L)`."""
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
    """Makes the loops over `steps` runs of `size` rows, with a custom gradient."""
    known = size if isinstance(size, int) else None

    def read(rows, step):
        """`(n S, R) -> (size, R)`: the rows of one step; past the end, those of the last step."""
        rows = xla.dynamic_slice(rows, [step * size, 0], [size, rows.shape[-1]])
        # Restore the static shape, which a loop's state must have.
        return tf.cast(tf.ensure_shape(rows, (known, rows.shape[-1])), tf.float32)

    def write(arrays, turn, rows):
        """Writes each `(size, R)` of `rows` into its array `(turns, size, R)`, at index `turn`."""
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
        """Runs `turn(i, state) -> (state, rows)` for every turn; returns all rows.

        They are `(turns, size, R)` for each of the `number` arrays.

        The arrays are initialized with an element of `like`. XLA would share a constant among all
        loops of a model, fill it in and copy it for each; this way it sees that no initial value is
        read.
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
        """`(turns, size, R) -> (R,)`: sums by matrix products.

        A CPU's compiler would sum along strides, which takes ten times as long. A TPU's compiler
        turns the products back into float32 sums, if each of many products has at most 32 rows.
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

        # The state before each turn, and after each of its steps.
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
                    # No gradient comes from beyond the last step.
                    g = read(dc_rows, step) + tf.where(step + 1 < steps, passed, 0.0)
                    rows.append(g)
                    if 2 * j == TURN:  # two fusions of two steps cost less than one of four
                        g = xla.optimization_barrier(g)[0]
                return g, rows[::-1]

            dx, dalpha, dbeta = [], 0.0, 0.0
            for j, g in enumerate(loop(backward, tf.zeros_like(start), TURN, dc)):
                # They were written in the order of computation, the last turn first.
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
    """Dropout: drops elements of x with probability `rate` and divides the others by 1 - rate.

    TensorFlow's own computes the key of each dropout by 10 rounds of Philox, 344 operations in all,
    which are two fifths of all operations in a step of T5. Here the key is MurmurHash3's `fmix32`
    (Appleby 2011).

    Args:
        seed: `(2,)` integers.
    """
    key = tf.cast(seed, tf.uint32)
    key = _shifted(key, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    key = _shifted(key, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.shape(x),
        key=tf.bitcast(_shifted(key, 16)[None], tf.uint64),  # (1, 2) -> (1,)
        counter=tf.zeros((2,), tf.uint64),
        alg=tf.random.Algorithm.AUTO_SELECT.value,  # the device's own
        dtype=tf.uint32,
    )
    kept = bits >= tf.constant(round(rate * 2**32), tf.uint32)
    return tf.where(kept, x * tf.cast(1.0 / (1.0 - rate), x.dtype), tf.zeros_like(x))


def _shifted(key, by: int):
    return tf.bitwise.bitwise_xor(key, tf.bitwise.right_shift(key, tf.constant(by, key.dtype)))


def _fixed(array):
    """Keeps XLA from changing the array's layout for the operation that made it."""
    return xla.optimization_barrier(array)[0]
