"""The recurrence of SwishRNN: a running soft maximum along the sequence."""

import keras
from keras import ops

from macaron_tf.kernels import loop, scan
from macaron_tf.kernels.choice import chosen


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
        implementation: `"scan"` is the reference, a scan that the backend differentiates;
            `"loop"` has a gradient derived by hand; `"xla"` is for what XLA compiles; `"native"` is
            a CPU op, compiled on first use. `"auto"` takes the best for the place, see
            `choice.chosen`. They differ by rounding.

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
    return _module(name).recurrence(x, alpha, beta, step_size, mask, start)


def _module(name: str):
    if name == "native":
        from macaron_tf.kernels import native_swish  # this and the next need TensorFlow

        return native_swish
    if name == "xla":
        from macaron_tf.kernels import xla

        return xla
    return {"scan": scan, "loop": loop}[name]
