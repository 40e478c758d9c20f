"""SwishRNN's recurrence, a running soft maximum along the sequence, and its gate.

Two of the four implementations are here, in `keras.ops`: the reference, a scan that the backend
differentiates, and a loop with a hand-derived gradient, so that no loop has to be differentiated.
With u[t] = c[t-1] - x[t], s = sigmoid(alpha u + beta) and q = u s (1 - s), the derivative of a step
with respect to the previous state is J = s + alpha q, and with respect to x it is 1 - J. They are
computed for all steps at once. The backward loop then only has a product and a sum per step:
G[t] = dc[t] + J[t+1] G[t+1].

A step takes k neighbouring positions, because their k chains are independent. Arrays of a loop are
in time order, `(n, k, B, R)`; for every k their memory layout is that of `(L, B, R)`.
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
    """The gate of SwishRNN: `(c + state_bias) * gate(x2 + gate_bias)`, all `(..., R)`."""
    return ops.multiply(ops.add(c, state_bias), GATES[gate](ops.add(x2, gate_bias)))


def in_steps(x, step_size: int):
    """`(B, L, R) -> (n, k, B, R)`, n = ceil(L / k); the last step is padded with zeros."""
    batch, length, width = ops.shape(x)
    # ceil(L / k) without negative numbers, because ONNX rounds quotients towards 0.
    steps = (length + step_size - 1) // step_size
    x = ops.transpose(x, (1, 0, 2))  # (L, B, R)
    if step_size > 1:
        x = ops.pad(x, ((0, steps * step_size - length), (0, 0), (0, 0)))
    # (n k, B, R) -> (n, k, B, R)
    return ops.reshape(x, (steps, step_size, batch, width))


def from_steps(x, length):
    """Inverse of `in_steps`: `(n, k, B, R) -> (B, L, R)`."""
    steps, step_size, batch, width = ops.shape(x)
    # (n, k, B, R) -> (n k, B, R) -> (L, B, R)
    x = ops.reshape(x, (steps * step_size, batch, width))[:length]
    return ops.transpose(x, (1, 0, 2))


def one_step(c, alpha, beta, x, keep=None, follows=None):
    """One step, `Swish(c - x) + x` of `(k, B, R)`; c is unchanged where `keep (k, B, 1)` is 0.

    Where `follows (k, B, 1)` is 0, a text begins and c counts as zeros.
    """
    c = following(c, follows)
    u = c - x
    new = ops.sigmoid(alpha * u + beta) * u + x
    return new if keep is None else ops.where(keep > 0, new, c)


def following(c, follows):
    """The states `(..., R)`, zeros where `follows (..., 1)` is 0; None: no text begins."""
    return c if follows is None else ops.where(follows > 0, c, 0.0)


def derivatives(u, keep, alpha, beta):
    """J, u and q of the module's docstring. At padding the state is unchanged: J = 1, q = 0."""
    s = ops.sigmoid(alpha * u + beta)
    q = u * s * (1.0 - s)
    jacobian = s + alpha * q
    if keep is None:
        return jacobian, u, q
    jacobian = ops.where(keep > 0, jacobian, 1.0)
    return jacobian, *(ops.where(keep > 0, array, 0.0) for array in (u, q))


def scanned(x, alpha, beta, start, *marks):
    """All states c `(n, k, B, R)` by a scan; the marks are `keep` and `follows` of `one_step`."""
    return _scan(lambda c, inputs: one_step(c, alpha, beta, *inputs), start, [x, *marks])


def scanned_with_gradient(x, alpha, beta, start, *marks):
    """Same as `scanned`, by a loop with a hand-derived gradient, which is one more loop."""

    # The marks are arguments because JAX rejects a custom gradient that captures recomputed values.
    @ops.custom_gradient
    def run(x, alpha, beta, start, *marks):
        keep, follows = (*marks, None, None)[:2]
        c = _loop(lambda c, inputs: one_step(c, alpha, beta, *inputs), start, [x, *marks])

        def gradient(*arguments, upstream=None):
            dc = arguments[0] if upstream is None else upstream
            before = ops.concatenate([start[None], c[:-1]], axis=0)
            u = following(before, follows) - x
            jacobian, u, q = derivatives(u, keep, alpha, beta)
            # G (n, k, B, R) needs J of the next step, which is 0 for the last one.
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
    """Runs `scanned`, or another `run`, on x `(B, L, R)`, mask `(B, L)` and start `(B, k, R)`."""
    if start is None:
        start = ops.zeros((ops.shape(x)[0], step_size, x.shape[-1]), "float32")
    # (B, L) -> (n, k, B, 1)
    marks = [in_steps(mark, step_size) for mark in marks_of(mask)]
    steps = in_steps(ops.cast(x, "float32"), step_size)  # (n, k, B, R)
    start = ops.transpose(start, (1, 0, 2))  # (k, B, R)
    c = run(steps, alpha, beta, start, *marks)
    return ops.cast(from_steps(c, ops.shape(x)[1]), x.dtype)


def marks_of(mask) -> list:
    """The marks `keep` and, for an integer mask, `follows` of `one_step`: `(B, L, 1)` float32."""
    if mask is None:
        return []
    keep = ops.expand_dims(ops.cast(mask, "float32"), -1)
    whole = keras.backend.standardize_dtype(mask.dtype) == "bool"
    return [keep] if whole else [keep, ops.cast(keep < 2, "float32")]


def _scan(step, start, inputs: list):
    """All states of `c = step(c, inputs[i])`, stacked along a new first axis.

    On TensorFlow it is `tf.scan`, because `keras.ops.scan` does not compile under XLA there.

    Args:
        step: function `(c, arrays) -> c`.
        inputs: arrays with n steps along their first axis.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf  # not on JAX, where TensorFlow need not be installed

        count = ops.shape(inputs[0])[0]
        if not isinstance(count, int):  # with an unknown size of c, `tf.scan` needs a step
            spare = tf.cast(count == 0, tf.int32)
            inputs = [tf.pad(array, [[0, spare], [0, 0], [0, 0], [0, 0]]) for array in inputs]
        return tf.scan(step, inputs, initializer=start)[:count]
    return _scan_on_jax(step, start, inputs)


def _loop(step, start, inputs: list, reverse: bool = False):
    """Same as `_scan`, in either direction, but not differentiable.

    On TensorFlow, the shape of the states is passed as a tensor: LiteRT cannot convert `tf.scan` if
    the batch size is unknown.
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
    """Steps per iteration of JAX's loop: 8 on a GPU, where every iteration launches kernels.

    Gate and gradient for 32 x 512 positions of width 2048 on an H100 take 17.8 ms with one step per
    iteration, 2.5 ms with 8, and 1.9 ms with 32, which compile several times as long. CPUs gain
    nothing.
    """
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return 8 if jax.default_backend() == "gpu" else 1
