"""SwishRNN's recurrence, a running soft maximum along the sequence, and its gate.

The recurrence has four implementations. Two of the four are in this module and run on TensorFlow
and JAX. The first is the reference, a scan that the backend differentiates. The second is a loop
with a hand-derived gradient, so that the backend does not have to differentiate a loop.

With u[t] = c[t-1] - x[t], s = sigmoid(alpha u + beta) and q = u s (1 - s), the derivative of a step
with respect to the previous state is J = s + alpha q, and the derivative with respect to x is
1 - J. Both derivatives are computed for all steps at once. Each step of the backward loop then only
needs a product and a sum: G[t] = dc[t] + J[t+1] G[t+1].

For a step size k, the recurrence splits into k independent chains, so each step of a loop computes
k neighbouring positions. In a loop, arrays are time-major, `(n, k, B, R)`, with n steps, k
positions per step, batch size B and width R. For every k, the memory layout is the same as for `(L,
B, R)`.
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
    """Applies SwishRNN's gate, `(c + state_bias) * gate(x2 + gate_bias)`, to `(..., R)`."""
    return ops.multiply(ops.add(c, state_bias), GATES[gate](ops.add(x2, gate_bias)))


def to_steps(x, step_size: int):
    """Converts a batch-major array `(B, L, R)` to a time-major array `(n, k, B, R)`.

    k is `step_size`, and the number of steps n is ceil(L / k). If k does not divide L, the last
    step is padded with zeros.
    """
    batch, length, width = ops.shape(x)
    # ceil(L / k) without negative numbers, because ONNX rounds quotients towards 0.
    steps = (length + step_size - 1) // step_size
    x = ops.transpose(x, (1, 0, 2))  # (L, B, R)
    if step_size > 1:
        x = ops.pad(x, ((0, steps * step_size - length), (0, 0), (0, 0)))
    # (n k, B, R) -> (n, k, B, R)
    return ops.reshape(x, (steps, step_size, batch, width))


def from_steps(x, length):
    """Converts a time-major array from `to_steps` back: `(n, k, B, R) -> (B, L, R)`."""
    steps, step_size, batch, width = ops.shape(x)
    # (n, k, B, R) -> (n k, B, R) -> (L, B, R)
    x = ops.reshape(x, (steps * step_size, batch, width))[:length]
    return ops.transpose(x, (1, 0, 2))


def one_step(c, alpha, beta, x, keep=None, follows=None):
    """Computes the next state of the recurrence, `Swish(c - x) + x`, for `c` and `x (k, B, R)`.

    Args:
        alpha, beta: parameters of Swish, `(R,)`.
        keep: `(k, B, 1)`, 0 at padded positions, which keep the previous state.
        follows: `(k, B, 1)`, 0 where a text begins and zeros replace the previous state.
    """
    c = reset_at_starts(c, follows)
    u = c - x
    new = ops.sigmoid(alpha * u + beta) * u + x
    return new if keep is None else ops.where(keep > 0, new, c)


def reset_at_starts(c, follows):
    """Sets states `(..., R)` to zero where a text begins: `follows (..., 1)` is 0 there."""
    return c if follows is None else ops.where(follows > 0, c, 0.0)


def derivatives(u, keep, alpha, beta):
    """Returns J, u and q, as defined at the top of this module.

    At padded positions the state does not change, so J is 1, and u and q are 0.
    """
    s = ops.sigmoid(alpha * u + beta)
    q = u * s * (1.0 - s)
    jacobian = s + alpha * q
    if keep is None:
        return jacobian, u, q
    jacobian = ops.where(keep > 0, jacobian, 1.0)
    return jacobian, *(ops.where(keep > 0, array, 0.0) for array in (u, q))


def states_by_scan(x, alpha, beta, start, *marks):
    """Computes all states `(n, k, B, R)` by a scan, which the backend differentiates.

    `x (n, k, B, R)` is time-major, `start (k, B, R)`, and `marks` are `keep` and `follows` of
    `one_step`. On TensorFlow by `tf.scan`, because `keras.ops.scan` does not compile under XLA.
    """
    inputs = [x, *marks]

    def step(c, inputs):
        return one_step(c, alpha, beta, *inputs)

    if keras.backend.backend() != "tensorflow":
        return _scan_on_jax(step, start, inputs)
    import tensorflow as tf  # not on JAX, where TensorFlow need not be installed

    count = ops.shape(x)[0]
    if not isinstance(count, int):  # `tf.scan` may need at least one step to find c's shape
        padding = tf.cast(count == 0, tf.int32)
        inputs = [tf.pad(array, [[0, padding], [0, 0], [0, 0], [0, 0]]) for array in inputs]
    return tf.scan(step, inputs, initializer=start)[:count]


def states_by_loop(x, alpha, beta, start, *marks):
    """Computes the same states as `states_by_scan`, by a loop with a hand-derived gradient."""

    # The marks are arguments, because JAX rejects a custom gradient that closes over values which
    # gradient checkpointing computes again.
    @ops.custom_gradient
    def forward(x, alpha, beta, start, *marks):
        keep, follows = (*marks, None, None)[:2]
        c = loop(lambda c, inputs: one_step(c, alpha, beta, *inputs), start, [x, *marks])

        def backward(*arguments, upstream=None):
            dc = arguments[0] if upstream is None else upstream
            previous = ops.concatenate([start[None], c[:-1]], axis=0)
            u = reset_at_starts(previous, follows) - x
            jacobian, u, q = derivatives(u, keep, alpha, beta)
            # G, (n, k, B, R), needs J of the next step, which is 0 for the last step.
            passed_on = reset_at_starts(jacobian, follows)
            next_jacobian = ops.concatenate([passed_on[1:], ops.zeros_like(jacobian[:1])], axis=0)
            last = ops.zeros_like(dc[0])
            g = loop(lambda g, dc_j: dc_j[0] + dc_j[1] * g, last, [dc, next_jacobian], reverse=True)
            gq, dstart = g * q, (g * passed_on)[0]
            dalpha, dbeta = (ops.sum(array, axis=(0, 1, 2)) for array in (gq * u, gq))
            return g - g * jacobian, dalpha, dbeta, dstart, *map(ops.zeros_like, marks)

        return c, backward

    return forward(x, alpha, beta, start, *marks)


def marks_of(mask) -> list:
    """Converts a mask `(B, L)` to float32 `(B, L, 1)`: `keep` and, of integers, `follows`."""
    if mask is None:
        return []
    keep = ops.expand_dims(ops.cast(mask, "float32"), -1)
    is_boolean = keras.backend.standardize_dtype(mask.dtype) == "bool"
    return [keep] if is_boolean else [keep, ops.cast(keep < 2, "float32")]


def loop(step, start, inputs: list, reverse: bool = False):
    """Computes all states of a recurrence, stacked along a new first axis, without a gradient.

    Not `tf.scan`, which LiteRT cannot convert for an unknown batch size: the loop passes the shape
    of the states as a tensor. With `reverse`, the output keeps the order of `inputs`.
    """
    if keras.backend.backend() != "tensorflow":
        return _scan_on_jax(step, start, inputs, reverse, _unroll())
    import tensorflow as tf

    count, shape = ops.shape(inputs[0])[0], tf.shape(start)
    element = {"element_shape": shape, "element_dtype": start.dtype}
    states = tf.raw_ops.TensorListReserve(num_elements=count, **element)

    def body(index, c, states):
        position = count - 1 - index if reverse else index
        c = tf.ensure_shape(step(c, [tf.gather(array, position) for array in inputs]), start.shape)
        states = tf.raw_ops.TensorListSetItem(input_handle=states, index=position, item=c)
        return index + 1, c, states

    *_, states = tf.while_loop(
        lambda index, *_: index < count, body, (0, start, states), maximum_iterations=count
    )
    states = tf.raw_ops.TensorListStack(input_handle=states, **element)
    return tf.ensure_shape(states, inputs[0].shape[:1] + start.shape)


def _scan_on_jax(step, start, inputs: list, reverse: bool = False, unroll: int = 1):
    options = {"reverse": reverse, "unroll": unroll}
    return ops.scan(lambda c, x: (step(c, x),) * 2, start, inputs, **options)[1]


def _unroll() -> int:
    """Returns the number of steps per iteration of a JAX loop: 8 on a GPU, and 1 elsewhere.

    On a GPU, every iteration launches kernels. For 32 x 512 positions of width 2048 on an H100, the
    gate and its gradient take 17.8 ms with 1 step per iteration, 2.5 ms with 8 steps, and 1.9 ms
    with 32 steps. Compiling a loop with 32 steps takes several times as long. On a CPU, more steps
    per iteration save no time.
    """
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return 8 if jax.default_backend() == "gpu" else 1
