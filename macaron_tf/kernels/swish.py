"""SwishRNN's recurrence and gate, with a choice of implementations."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.kernels.choice import chosen
from macaron_tf.kernels.recurrence import (
    GATES,
    gated,
    in_time_order,
    scanned,
    scanned_with_gradient,
)


def swish_recurrence(
    x,
    alpha,
    beta,
    step_size: int = 1,
    mask=None,
    initial_state=None,
    implementation: str = "auto",
):
    """SwishRNN's recurrence, `c[i] = Swish(c[i-k] - x[i]) + x[i]`.

    `Swish(u) = sigmoid(alpha u + beta) u`. If x[i] is far above c[i-k], the result is x[i]; if it
    is far below, the result is c[i-k]. Positions that are k apart form k independent chains, so
    each step of the loop takes k positions, and there are ceil(L / k) steps.

    Args:
        x: `(B, L, R)`, of any float dtype; the state is float32.
        alpha, beta: `(R,)`.
        step_size: k, at least 1. It need not divide L.
        mask: `(B, L)` boolean, False at padding, which leaves the state unchanged, so that padding
            on either side does not affect real positions. (With k chains: any number of padded
            positions on the left, multiples of k between real ones.) Or integers: 0 at padding, 1,
            and 2 where the previous state counts as zeros, as at the beginning of a text.
        initial_state: `(B, k, R)`, the k values before x[0]; None: zeros.
        implementation: `"scan"` is the reference; `"loop"` has a hand-derived gradient; `"xla"` is
            for graphs that XLA compiles; `"native"` is a CPU op, compiled on first use; `"auto"` is
            the best one for device and graph, and `"stock"` the best one with TensorFlow's own ops
            only, see `chosen`. Their results differ by rounding.

    Returns:
        c, `(B, L, R)`, in x's dtype.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    if step_size < 1:
        raise ValueError(f"step_size={step_size} must be 1 or more")
    x = ops.convert_to_tensor(x)
    name = chosen(implementation, keras.backend.standardize_dtype(x.dtype))
    if 0 in x.shape:  # no step; the gradients are 0
        return ops.multiply(x, ops.cast(ops.add(alpha, beta), x.dtype))
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
    run = scanned if name == "scan" else scanned_with_gradient
    return in_time_order(run, x, alpha, beta, step_size, mask, start)


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
    """SwishRNN's recurrence and gate, `(C + state_bias) * gate(X2 + gate_bias)`.

    C is the recurrence over X1.

    Args:
        x: `(B, L, 2 R)`, X1 and X2 concatenated, the output of one matrix product.
        alpha, beta, state_bias, gate_bias: `(R,)`.
        step_size, mask: see `swish_recurrence`.
        gate: one of `GATES`: the exact GELU, its tanh form, or a sigmoid.
        implementation: see `swish_recurrence`. `"native"` computes everything in one pass over x,
            and keeps only x and C for the gradient.

    Returns:
        `(B, L, R)`, in x's dtype.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3-4.
    """
    check_choice("gate", gate, GATES)
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if step_size >= 1 and 0 not in x.shape and chosen(implementation, dtype) == "native":
        from macaron_tf.kernels import native

        return native.gated(x, alpha, beta, state_bias, gate_bias, step_size, gate, mask)
    x1, x2 = ops.split(x, 2, axis=-1)  # each (B, L, R)
    c = swish_recurrence(x1, alpha, beta, step_size, mask, implementation=implementation)
    return gated(c, x2, state_bias, gate_bias, gate)
