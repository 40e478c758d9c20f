"""Packing: batches without padding, for faster inference on texts of different lengths."""

import contextlib
import contextvars

from keras import ops

from macaron_tf.kernels import compiled_by_xla
from macaron_tf.kernels.choice import scoped

_packing: contextvars.ContextVar[bool] = contextvars.ContextVar("packing", default=False)


def packing_scope() -> contextlib.AbstractContextManager:
    """Lets `Encoder` models skip padding within this context.

    Embeddings, norms, feed-forward layers and attention projections then run on real tokens only, a
    third of the matrix products if the average length is a third of the maximum. Other layers run
    on padded sequences. Activations have rank 2, so that TensorFlow fuses matrix products with bias
    and GELU. Hidden states at padding are zeros.

    Encoders keep the padding during training, in calls with an attention mask, document ids or a
    memory, and in graphs compiled by XLA (on JAX, always), because packed shapes depend on the
    data.
    """
    return scoped(_packing, True)


def packing_enabled() -> bool:
    """Returns whether a `packing_scope` is active and XLA does not compile the current graph."""
    return _packing.get() and not compiled_by_xla()


class Packing:
    """Conversion between padded batches `(B, T, ...)` and their N real tokens `(N, ...)`."""

    def __init__(self, mask):
        self._shape = ops.shape(mask)
        (self._indices,) = ops.nonzero(ops.reshape(mask, (-1,)))  # (N,), index b T + t of a token

    def pack(self, x):
        """Removes padding: `(B, T, ...)` to `(N, ...)`."""
        # (B, T, ...) -> (B T, ...) -> (N, ...)
        return ops.take(ops.reshape(x, (-1, *x.shape[2:])), self._indices, axis=0)

    def pad(self, x):
        """Restores padding with zeros: `(N, ...)` to `(B, T, ...)`."""
        rows, length = self._shape
        # (N, ...) -> (B T, ...) -> (B, T, ...)
        filled = ops.scatter(self._indices[:, None], x, (rows * length, *x.shape[1:]))
        return ops.reshape(filled, (rows, length, *x.shape[1:]))
