"""The recurrence and the gate that follows it, in one where a kernel does both."""

from functools import partial

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.kernels.choice import chosen
from macaron_tf.kernels.swish_recurrence import swish_recurrence

GATES = {
    "gelu": partial(ops.gelu, approximate=False),
    "gelu_tanh": partial(ops.gelu, approximate=True),
    "sigmoid": ops.sigmoid,
}


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
        x: `(B, L, 2 R)`: X1 and X2 side by side, as one product leaves them.
        alpha, beta, state_bias, gate_bias: `(R,)`.
        step_size: k, see `swish_recurrence`.
        gate: one of `GATES`: the exact GELU, its tanh form, or a sigmoid.
        mask: `(B, L)` boolean, see `swish_recurrence`.
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
        from macaron_tf.kernels import native_swish

        return native_swish.gated(x, alpha, beta, state_bias, gate_bias, step_size, gate, mask)
    x1, x2 = ops.split(x, 2, axis=-1)  # each (B, L, R)
    c = swish_recurrence(x1, alpha, beta, step_size, mask, implementation=implementation)
    return gated(c, x2, state_bias, gate_bias, gate)


def gated(c, x2, state_bias, gate_bias, gate: str):
    """`(c + state_bias) * gate(x2 + gate_bias)`, all `(..., R)`."""
    return ops.multiply(ops.add(c, state_bias), GATES[gate](ops.add(x2, gate_bias)))
