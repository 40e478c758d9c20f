"""The native recurrence in Python: TensorFlow operations of our own, and their gradients."""

import tensorflow as tf

from macaron_tf.checks import check_choice
from macaron_tf.kernels.native_library import operations
from macaron_tf.kernels.swish_gate import GATES


def recurrence(x, alpha, beta, step_size: int, mask=None, start=None) -> tf.Tensor:
    """`c[i] = Swish(c[i-k] - x[i]) + x[i]` with `Swish(u) = sigmoid(alpha u + beta) u`.

    The state is float32 within. Gradients reach x, alpha, beta and start, once: there is no second
    derivative. On the CPU and not under XLA; not for a SavedModel: for
    signatures, `tf.saved_model.SaveOptions(namespace_whitelist=[])` refuses it.

    Args:
        x: `(B, L, R)`, float32 or bfloat16.
        alpha, beta: `(R,)`.
        step_size: k, 1 or more.
        mask: `(B, L)` boolean, False where `c[i] = c[i-k]` and x[i] gets no gradient; or None.
        start: `(B, k, R)`, the values before x[0]; None for zeros.

    Returns:
        c, `(B, L, R)`, of x's type.

    Raises:
        UserError: the operations are not available.
        tf.errors.InvalidArgumentError: shapes that do not fit (ValueError while a graph is made).

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    return operations().macaron_tf_swish_recurrence(
        x=x,
        alpha=_float32(alpha),
        beta=_float32(beta),
        mask=_optional(mask, tf.bool),
        start=_optional(start, tf.float32),
        step_size=step_size,
    )


def gated(x, alpha, beta, state_bias, gate_bias, step_size: int, gate: str, mask=None) -> tf.Tensor:
    """`(C + state_bias) * gate(X2 + gate_bias)`, C the recurrence over X1, in one pass.

    Kept for the gradient are x and C, in x's type; between them C is float32. In bfloat16 the
    gradient therefore starts from a rounded C. Otherwise as `recurrence`.

    Args:
        x: `(B, L, 2 R)`, X1 and X2 side by side, float32 or bfloat16.
        alpha, beta, state_bias, gate_bias: `(R,)`.
        step_size: k, 1 or more.
        gate: `"gelu"` (exact), `"gelu_tanh"` or `"sigmoid"`.
        mask: as in `recurrence`; the gate applies at every position.

    Returns:
        `(B, L, R)`, of x's type.

    Raises:
        As `recurrence`; ValueError: no such gate.

    References: Lei et al. 2022, eq. 2-4.
    """
    check_choice("gate", gate, GATES)
    y, _ = operations().macaron_tf_swish_gate(
        x=x,
        alpha=_float32(alpha),
        beta=_float32(beta),
        state_bias=_float32(state_bias),
        gate_bias=_float32(gate_bias),
        mask=_optional(mask, tf.bool),
        step_size=step_size,
        gate=gate,
    )
    return y


@tf.RegisterGradient("MacaronTf>SwishRecurrence")
def _recurrence_gradient(operation, dc):
    x, alpha, beta, *optional = operation.inputs
    masks = operation.get_attr("masks")
    dx, dalpha, dbeta, dstart = operations().macaron_tf_swish_recurrence_grad(
        x=x,
        alpha=alpha,
        beta=beta,
        c=operation.outputs[0],
        dy=dc,
        mask=optional[:masks],
        start=optional[masks:],
        step_size=operation.get_attr("step_size"),
    )
    return dx, dalpha, dbeta, *[None] * masks, *dstart


@tf.RegisterGradient("MacaronTf>SwishGate")
def _gate_gradient(operation, dy, _):
    x, alpha, beta, state_bias, gate_bias, *masks = operation.inputs
    gradients = operations().macaron_tf_swish_gate_grad(
        x=x,
        alpha=alpha,
        beta=beta,
        state_bias=state_bias,
        gate_bias=gate_bias,
        c=operation.outputs[1],
        dy=dy,
        mask=masks,
        step_size=operation.get_attr("step_size"),
        gate=operation.get_attr("gate"),
    )
    return *gradients, *[None] * len(masks)


def _float32(vector) -> tf.Tensor:
    return tf.cast(vector, tf.float32)


def _optional(value, dtype: tf.DType) -> list[tf.Tensor]:
    return [] if value is None else [tf.cast(value, dtype)]
