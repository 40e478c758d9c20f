"""The recurrence of SwishRNN, a running soft maximum along the sequence, and the gate after it.

Two of its four implementations are here, in `keras.ops`: the reference, a scan that the backend
differentiates, and a loop with a gradient derived by hand, so that no loop is differentiated. With
u[t] = c[t-1] - x[t], s = sigmoid(alpha u + beta) and q = u s (1 - s), a step's derivative by the
state before it is J = s + alpha q, and by x it is 1 - J. All of these are computed at once, before
the loop, which only has a product and a sum a step: G[t] = dc[t] + J[t+1] G[t+1].

Positions are steps of a loop: k neighbours are one step, for their chains do not touch. The arrays
of a loop are in time order, `(n, k, B, R)`: for every k they lie as `(L, B, R)`.
"""

from functools import partial

import keras
from keras import ops

GATES = {
    "gelu": partial(ops.gelu, approximate=False),
    "gelu_tanh": partial(ops.gelu, approximate=True),
    "sigmoid": ops.sigmoid,
}


def gated(c, x2, state_bias, gate_bias, gate: str):
    """`(c + state_bias) * gate(x2 + gate_bias)`, all `(..., R)`."""
    return ops.multiply(ops.add(c, state_bias), GATES[gate](ops.add(x2, gate_bias)))


def in_steps(x, step_size: int):
    """`(B, L, R) -> (n, k, B, R)`, n = ceil(L / k), filled up with zeros at the end."""
    batch, length, width = ops.shape(x)
    # ceil(L / k) of positive numbers alone: ONNX divides integers towards 0.
    steps = (length + step_size - 1) // step_size
    x = ops.transpose(x, (1, 0, 2))  # (L, B, R)
    if step_size > 1:
        x = ops.pad(x, ((0, steps * step_size - length), (0, 0), (0, 0)))
    # (n k, B, R) -> (n, k, B, R)
    return ops.reshape(x, (steps, step_size, batch, width))


def from_steps(x, length):
    """`(n, k, B, R) -> (B, L, R)`: `in_steps` undone."""
    steps, step_size, batch, width = ops.shape(x)
    # (n, k, B, R) -> (n k, B, R) -> (L, B, R)
    x = ops.reshape(x, (steps * step_size, batch, width))[:length]
    return ops.transpose(x, (1, 0, 2))


def one_step(c, alpha, beta, x, keep=None, follows=None):
    """`Swish(c - x) + x` of `(k, B, R)`; c at positions where `keep (k, B, 1)` is 0.

    Where `follows (k, B, 1)` is 0 a text begins: c counts as zeros.
    """
    c = following(c, follows)
    u = c - x
    new = ops.sigmoid(alpha * u + beta) * u + x
    return new if keep is None else ops.where(keep > 0, new, c)


def following(c, follows):
    """The states `(..., R)`, zeros where `follows (..., 1)` is 0; None = it is 1 everywhere."""
    return c if follows is None else ops.where(follows > 0, c, 0.0)


def derivatives(u, keep, alpha, beta):
    """J, u and q of the module's docstring; a padded step passes its state on: J = 1, q = 0."""
    s = ops.sigmoid(alpha * u + beta)
    q = u * s * (1.0 - s)
    jacobian = s + alpha * q
    if keep is None:
        return jacobian, u, q
    jacobian = ops.where(keep > 0, jacobian, 1.0)
    return jacobian, *(ops.where(keep > 0, array, 0.0) for array in (u, q))


def scanned(x, alpha, beta, start, *marks):
    """All states c `(n, k, B, R)`; the marks are `keep` and `follows` of `one_step`."""
    return _scan(lambda c, inputs: one_step(c, alpha, beta, *inputs), start, [x, *marks])


def scanned_with_gradient(x, alpha, beta, start, *marks):
    """`scanned` by a loop, its gradient by one more."""

    # The marks are arguments: JAX refuses a custom gradient that sees values of a recomputation.
    @ops.custom_gradient
    def run(x, alpha, beta, start, *marks):
        keep, follows = (*marks, None, None)[:2]
        c = _loop(lambda c, inputs: one_step(c, alpha, beta, *inputs), start, [x, *marks])

        def gradient(*arguments, upstream=None):
            dc = arguments[0] if upstream is None else upstream
            before = ops.concatenate([start[None], c[:-1]], axis=0)
            u = following(before, follows) - x
            jacobian, u, q = derivatives(u, keep, alpha, beta)
            # G (n, k, B, R), from J of the step after; nothing comes after the last.
            passed_on = following(jacobian, follows)
            after = ops.concatenate([passed_on[1:], ops.zeros_like(jacobian[:1])], axis=0)
            last = ops.zeros_like(dc[0])
            g = _loop(lambda g, dc_j: dc_j[0] + dc_j[1] * g, last, [dc, after], reverse=True)
            gq, dstart = g * q, (g * passed_on)[0]
            dalpha, dbeta = (ops.sum(array, axis=(0, 1, 2)) for array in (gq * u, gq))
            return g - g * jacobian, dalpha, dbeta, dstart, *map(ops.zeros_like, marks)

        return c, gradient

    return run(x, alpha, beta, start, *marks)


def in_time_order(run, x, alpha, beta, step_size: int, mask, start=None):
    """`scanned`, or another `run`, of x `(B, L, R)`, mask `(B, L)` and start `(B, k, R)`."""
    if start is None:
        start = ops.zeros((ops.shape(x)[0], step_size, x.shape[-1]), "float32")
    # (B, L) -> (n, k, B, 1)
    marks = [in_steps(mark, step_size) for mark in marks_of(mask)]
    steps = in_steps(ops.cast(x, "float32"), step_size)  # (n, k, B, R)
    start = ops.transpose(start, (1, 0, 2))  # (k, B, R)
    c = run(steps, alpha, beta, start, *marks)
    return ops.cast(from_steps(c, ops.shape(x)[1]), x.dtype)


def marks_of(mask) -> list:
    """`keep` and, of a mask of integers, `follows`, `(B, L, 1)` float32: see `one_step`."""
    if mask is None:
        return []
    keep = ops.expand_dims(ops.cast(mask, "float32"), -1)
    whole = keras.backend.standardize_dtype(mask.dtype) == "bool"
    return [keep] if whole else [keep, ops.cast(keep < 2, "float32")]


def _scan(step, start, inputs: list):
    """All states of `c = step(c, inputs[i])`, stacked in front.

    `tf.scan` on TensorFlow, for `keras.ops.scan` does not compile under XLA there.

    Args:
        step: `(c, arrays) -> c`.
        inputs: arrays of n steps.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # not on JAX, where TensorFlow need not be installed

        count = ops.shape(inputs[0])[0]
        if not isinstance(count, int):  # `tf.scan` needs a step where a size of c is not known
            spare = tf.cast(count == 0, tf.int32)
            inputs = [tf.pad(array, [[0, spare], [0, 0], [0, 0], [0, 0]]) for array in inputs]
        return tf.scan(step, inputs, initializer=start)[:count]
    return _scan_on_jax(step, start, inputs)


def _loop(step, start, inputs: list, reverse: bool = False):
    """`_scan`, in either direction, whose gradient nobody asks for.

    On TensorFlow it gives the list of states its shape as a tensor: LiteRT cannot convert that of
    `tf.scan` where the size of the batch is unknown.
    """
    if keras.backend.backend() != "tensorflow":
        return _scan_on_jax(step, start, inputs, reverse, _turn())
    import tensorflow as tf

    count, shape = ops.shape(inputs[0])[0], tf.shape(start)
    states = tf.raw_ops.TensorListReserve(
        element_shape=shape, num_elements=count, element_dtype=start.dtype
    )

    def body(number, c, states):
        at = count - 1 - number if reverse else number
        c = tf.ensure_shape(step(c, [tf.gather(array, at) for array in inputs]), start.shape)
        states = tf.raw_ops.TensorListSetItem(input_handle=states, index=at, item=c)
        return number + 1, c, states

    *_, states = tf.while_loop(
        lambda number, *_: number < count, body, (0, start, states), maximum_iterations=count
    )
    states = tf.raw_ops.TensorListStack(
        input_handle=states, element_shape=shape, element_dtype=start.dtype
    )
    return tf.ensure_shape(states, inputs[0].shape[:1] + start.shape)


def _scan_on_jax(step, start, inputs: list, reverse: bool = False, turn: int = 1):
    return ops.scan(lambda c, x: (step(c, x),) * 2, start, inputs, reverse=reverse, unroll=turn)[1]


def _turn() -> int:
    """Steps in an iteration of JAX's loop: 8 on a GPU, where every iteration launches kernels.

    Gate and gradient of 32 x 512 positions of width 2048 on an H100: 17.8 ms at one step an
    iteration, 2.5 ms at 8, 1.9 ms at 32, which compile several times as long. A CPU gains nothing.
    """
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return 8 if jax.default_backend() == "gpu" else 1
