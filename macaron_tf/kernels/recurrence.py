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

from macaron_tf.checks import check_choice
from macaron_tf.kernels.choice import chosen

GATES = {
    "gelu": partial(ops.gelu, approximate=False),
    "gelu_tanh": partial(ops.gelu, approximate=True),
    "sigmoid": ops.sigmoid,
}


def swish_recurrence(
    x,
    alpha,
    beta,
    step_size: int = 1,
    mask=None,
    initial_state=None,
    implementation: str = "auto",
):
    """`c[i] = Swish(c[i-k] - x[i]) + x[i]` with `Swish(u) = sigmoid(alpha u + beta) u`.

    Where x[i] is far above c[i-k] the result is x[i], where it is far below it is c[i-k]. The k
    chains of positions that are k apart do not touch, so one step of the loop takes k positions,
    and ceil(L / k) steps suffice.

    Args:
        x: `(B, L, R)`, of any float type; the state is float32.
        alpha, beta: `(R,)`, trained.
        step_size: k, 1 or more. It need not divide L.
        mask: `(B, L)` boolean, False at padding: the state passes through unchanged, so that
            padding on either side changes no real position (k chains: on the left, any number of
            padded positions; between real ones, a multiple of k).
        initial_state: `(B, k, R)`, the k values before x[0]; zeros by default.
        implementation: `"scan"` is the reference; `"loop"` has a gradient derived by hand; `"xla"`
            is for graphs that XLA compiles; `"native"` is a CPU op, compiled on first use;
            `"auto"` is the best for the place, see `chosen`. They differ by rounding.

    Returns:
        c, `(B, L, R)`, of x's type.

    Raises:
        ValueError: step_size below 1, or no such implementation.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    if step_size < 1:
        raise ValueError(f"step_size={step_size} must be 1 or more")
    x = ops.convert_to_tensor(x)
    name = chosen(implementation, keras.backend.standardize_dtype(x.dtype))
    start = initial_state
    if start is None:
        start = ops.zeros((ops.shape(x)[0], step_size, x.shape[-1]), "float32")
    alpha, beta, start = (ops.cast(array, "float32") for array in (alpha, beta, start))
    if name == "native":
        from macaron_tf.kernels import native  # this and the next need TensorFlow

        return native.recurrence(x, alpha, beta, step_size, mask, start)
    if name == "xla":
        from macaron_tf.kernels import xla

        return xla.recurrence(x, alpha, beta, step_size, mask, start)
    keep = None
    if mask is not None:  # (B, L) -> (n, k, B, 1), 1 at real positions
        keep = in_steps(ops.cast(mask, "float32")[..., None], step_size)
    run = _scanned if name == "scan" else _with_gradient
    steps = in_steps(ops.cast(x, "float32"), step_size)  # (n, k, B, R)
    c = run(steps, alpha, beta, start_in_steps(start), keep)
    return ops.cast(from_steps(c, ops.shape(x)[1]), x.dtype)


def swish_gate(
    x,
    alpha,
    beta,
    state_bias,
    gate_bias,
    step_size: int = 1,
    gate: str = "gelu",
    mask=None,
    implementation: str = "auto",
):
    """`(C + state_bias) * gate(X2 + gate_bias)`, C the recurrence over X1.

    Args:
        x: `(B, L, 2 R)`: X1 and X2 side by side, the output of one product.
        alpha, beta, state_bias, gate_bias: `(R,)`.
        step_size, mask: see `swish_recurrence`.
        gate: one of `GATES`: the exact GELU, its tanh form, or a sigmoid.
        implementation: see `swish_recurrence`. `"native"` does all in one pass over x, and keeps
            only x and C for the gradient.

    Returns:
        `(B, L, R)`, of x's type.

    Raises:
        ValueError: step_size below 1, or no such gate or implementation.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3-4.
    """
    check_choice("gate", gate, GATES)
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if step_size >= 1 and chosen(implementation, dtype) == "native":
        from macaron_tf.kernels import native

        return native.gated(x, alpha, beta, state_bias, gate_bias, step_size, gate, mask)
    x1, x2 = ops.split(x, 2, axis=-1)  # each (B, L, R)
    c = swish_recurrence(x1, alpha, beta, step_size, mask, implementation=implementation)
    return gated(c, x2, state_bias, gate_bias, gate)


def gated(c, x2, state_bias, gate_bias, gate: str):
    """`(c + state_bias) * gate(x2 + gate_bias)`, all `(..., R)`."""
    return ops.multiply(ops.add(c, state_bias), GATES[gate](ops.add(x2, gate_bias)))


def in_steps(x, step_size: int):
    """`(B, L, R) -> (n, k, B, R)`, n = ceil(L / k), filled up with zeros at the end."""
    batch, length, width = ops.shape(x)
    steps = -(-length // step_size)
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


def start_in_steps(start):
    """`(B, k, R) -> (k, B, R)`."""
    return ops.transpose(start, (1, 0, 2))


def one_step(c, x, keep, alpha, beta):
    """`Swish(c - x) + x` of `(k, B, R)`; c at positions where `keep (k, B, 1)` is 0."""
    u = c - x
    new = ops.sigmoid(alpha * u + beta) * u + x
    return new if keep is None else ops.where(keep > 0, new, c)


def derivatives(u, keep, alpha, beta):
    """J, u and q of the module's docstring; a padded step passes its state on: J = 1, q = 0."""
    s = ops.sigmoid(alpha * u + beta)
    q = u * s * (1.0 - s)
    jacobian = s + alpha * q
    if keep is None:
        return jacobian, u, q
    jacobian = ops.where(keep > 0, jacobian, 1.0)
    return jacobian, *(ops.where(keep > 0, array, 0.0) for array in (u, q))


def _scanned(x, alpha, beta, start, keep):
    """All states c `(n, k, B, R)`."""
    return _scan(lambda c, inputs: one_step(c, *inputs, alpha, beta), start, (x, keep))


def _with_gradient(x, alpha, beta, start, keep):
    """`_scanned`, its gradient by one more scan."""

    @ops.custom_gradient
    def run(x, alpha, beta, start):
        c = _scanned(x, alpha, beta, start, keep)

        def gradient(*arguments, upstream=None):
            dc = arguments[0] if upstream is None else upstream
            before = ops.concatenate([start[None], c[:-1]], axis=0)
            jacobian, u, q = derivatives(before - x, keep, alpha, beta)
            # G (n, k, B, R), from J of the step after; nothing comes after the last.
            after = ops.concatenate([jacobian[1:], ops.zeros_like(jacobian[:1])], axis=0)
            last = ops.zeros_like(dc[0])
            g = _scan(lambda g, dc_j: dc_j[0] + dc_j[1] * g, last, (dc, after), reverse=True)
            passed, gq = g * jacobian, g * q
            dalpha, dbeta = (ops.sum(array, axis=(0, 1, 2)) for array in (gq * u, gq))
            return g - passed, dalpha, dbeta, passed[0]

        return c, gradient

    return run(x, alpha, beta, start)


def _scan(step, start, inputs: tuple, reverse: bool = False):
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
