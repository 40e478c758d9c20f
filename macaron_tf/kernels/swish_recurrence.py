"""The recurrence of SwishRNN: a running soft maximum along the sequence."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.kernels import scan

# Each: `(x (n, B, k, R), keep (n, B, k, 1) or None, alpha (R,), beta (R,), start (B, k, R)) ->
# (n, B, k, R)`, all float32: n steps of k positions each.
IMPLEMENTATIONS = {"scan": scan.recurrence}


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
        implementation: `"auto"`, or a name of `IMPLEMENTATIONS`.

    Returns:
        c, `(B, L, R)`, of x's type.

    Raises:
        ValueError: step_size below 1, or no such implementation.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 3.
    """
    if step_size < 1:
        raise ValueError(f"step_size={step_size} must be 1 or more")
    check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    run = IMPLEMENTATIONS["scan" if implementation == "auto" else implementation]

    length, width = ops.shape(x)[1], x.shape[-1]
    steps = -(-length // step_size)
    start = initial_state
    if start is None:
        start = ops.zeros((ops.shape(x)[0], step_size, width), "float32")
    keep = None
    if mask is not None:
        keep = _in_steps(ops.cast(mask, "float32")[..., None], steps, step_size)
    c = run(
        _in_steps(ops.cast(x, "float32"), steps, step_size),
        keep,
        ops.cast(alpha, "float32"),
        ops.cast(beta, "float32"),
        ops.cast(start, "float32"),
    )
    # (n, B, k, R) -> (B, n, k, R) -> (B, n k, R) -> (B, L, R)
    c = ops.reshape(ops.transpose(c, (1, 0, 2, 3)), (-1, steps * step_size, width))[:, :length]
    return ops.cast(c, keras.backend.standardize_dtype(x.dtype))


def _in_steps(x, steps, step_size: int):
    """`(B, L, R) -> (n, B, k, R)`, filled up with zeros at the end, where nothing comes after."""
    length = ops.shape(x)[1]
    if step_size > 1:
        x = ops.pad(x, ((0, 0), (0, steps * step_size - length), (0, 0)))
    # (B, n k, R) -> (B, n, k, R) -> (n, B, k, R)
    x = ops.reshape(x, (-1, steps, step_size, x.shape[-1]))
    return ops.transpose(x, (1, 0, 2, 3))
