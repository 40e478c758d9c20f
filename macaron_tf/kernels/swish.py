"""SwishRNN's recurrence and gate, with a choice of implementations."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.kernels import recurrence
from macaron_tf.kernels.choice import select_implementation
from macaron_tf.kernels.recurrence import GATES, gated


def swish_recurrence(
    x,
    alpha,
    beta,
    step_size: int = 1,
    mask=None,
    initial_state=None,
    implementation: str = "auto",
):
    """Computes SwishRNN's recurrence, `c[i] = Swish(c[i-k] - x[i]) + x[i]`.

    `Swish(u) = sigmoid(alpha u + beta) u` with the learned vectors `alpha` and `beta`, `(R,)`. If
    x[i] is far above c[i-k], the result is close to x[i], and if far below, to c[i-k]. The k chains
    of every k-th position are independent, so the loop computes k positions per step in ceil(L / k)
    steps. The states c are `(B, L, R)` in x's dtype.

    Padded positions leave the state unchanged, so padding before and after a text does not affect
    the text. Padding between real positions has no effect if its length is a multiple of k.

    Args:
        x: `(B, L, R)` with batch size B, length L and width R, in any float dtype. The state is
            float32.
        step_size: k, at least 1. L need not be a multiple of k.
        mask: `(B, L)`, booleans with False at padding. Alternatively, integers with 0 at padding, 2
            where a text begins and zeros replace the previous state, and 1 at all other positions.
        initial_state: the k states before the first position, `(B, k, R)`; `None` means zeros.
        implementation: `"scan"` is the reference, `"loop"` has a hand-derived gradient, `"xla"` is
            for graphs that XLA compiles, and `"native"` is a CPU op. `"auto"` selects the fastest,
            and `"stock"` the fastest of TensorFlow's own ops (see `select_implementation`). Results
            differ by rounding errors.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    if step_size < 1:
        raise ValueError(f"step_size={step_size} is too small: give 1 or more")
    x = ops.convert_to_tensor(x)
    name = select_implementation(implementation, keras.backend.standardize_dtype(x.dtype))
    if 0 in x.shape:  # There are no steps, and all gradients are 0.
        return ops.multiply(x, ops.cast(ops.add(alpha, beta), x.dtype))
    start = initial_state
    if start is None:
        start = ops.zeros((ops.shape(x)[0], step_size, x.shape[-1]), "float32")
    alpha, beta, start = (ops.cast(array, "float32") for array in (alpha, beta, start))
    if name in ("native", "xla"):
        from macaron_tf.kernels import native, xla  # These modules need TensorFlow.

        module = native if name == "native" else xla
        return module.recurrence(x, alpha, beta, step_size, mask, start)
    by_scan, by_loop = recurrence.states_by_scan, recurrence.states_by_loop
    compute_states = by_scan if name == "scan" else by_loop
    # (B, L) -> (n, k, B, 1)
    marks = [recurrence.to_steps(mark, step_size) for mark in recurrence.marks_of(mask)]
    steps = recurrence.to_steps(ops.cast(x, "float32"), step_size)  # (n, k, B, R)
    c = compute_states(steps, alpha, beta, ops.transpose(start, (1, 0, 2)), *marks)
    return ops.cast(recurrence.from_steps(c, ops.shape(x)[1]), x.dtype)


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
    """Computes SwishRNN's recurrence and gate, `(C + state_bias) * gate(X2 + gate_bias)`.

    C is the output of `swish_recurrence` for X1. The result is `(B, L, R)` in x's dtype.

    Args:
        x: X1 and X2, concatenated along the last axis, `(B, L, 2 R)`.
        gate: `"gelu"` for the exact GELU, `"gelu_tanh"` for its tanh approximation, or `"sigmoid"`.
        implementation: see `swish_recurrence`. `"native"` keeps only x and C for the gradient.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3-4.
    """
    check_choice("gate", gate, GATES)
    x = ops.convert_to_tensor(x)
    name = select_implementation(implementation, keras.backend.standardize_dtype(x.dtype))
    if name == "native" and step_size >= 1 and 0 not in x.shape:
        from macaron_tf.kernels import native

        return native.gated(x, alpha, beta, state_bias, gate_bias, step_size, gate, mask)
    x1, x2 = ops.split(x, 2, axis=-1)  # each (B, L, R)
    c = swish_recurrence(x1, alpha, beta, step_size, mask, implementation=implementation)
    return gated(c, x2, state_bias, gate_bias, gate)
