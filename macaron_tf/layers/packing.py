"""Packing: rows without their padding, for faster inference on texts of varied lengths."""

import contextlib
import contextvars
from collections.abc import Iterator

from keras import ops

from macaron_tf.kernels import compiled_by_xla

_packs: contextvars.ContextVar[bool] = contextvars.ContextVar("packs", default=False)


@contextlib.contextmanager
def packing_scope() -> Iterator[None]:
    """Within this context, encoders compute nothing for padding, except during training.

    Embeddings, norms, feed-forwards and the projections of attention then run on real tokens only;
    attention scores stay padded, and other mixers get padded rows. If rows have on average a third
    of the longest row's length, about a third of the matrix products remain. Activations have rank
    2, so that TensorFlow fuses products with bias and GELU. Hidden states at padding are zeros. The
    shapes depend on the data, so graphs that XLA compiles keep the padding.
    """
    token = _packs.set(True)
    try:
        yield
    finally:
        _packs.reset(token)


def packs() -> bool:
    """Whether the caller is inside a `packing_scope` and not compiled by XLA."""
    return _packs.get() and not compiled_by_xla()


class Packing:
    """Converts between rows `(B, T, ...)` with padding and their N real tokens `(N, ...)`.

    Args:
        mask: `(B, T)` boolean, False at padding.
    """

    def __init__(self, mask):
        self._shape = ops.shape(mask)
        (self._places,) = ops.nonzero(ops.reshape(mask, (-1,)))  # (N,), b T + t of each token

    def packed(self, x):
        """Removes the padding: `(B, T, ...)` to `(N, ...)`."""
        # (B, T, ...) -> (B T, ...) -> (N, ...)
        return ops.take(ops.reshape(x, (-1, *x.shape[2:])), self._places, axis=0)

    def padded(self, x):
        """Puts zeros back at padding: `(N, ...)` to `(B, T, ...)`."""
        rows, length = self._shape
        # (N, ...) -> (B T, ...) -> (B, T, ...)
        filled = ops.scatter(self._places[:, None], x, (rows * length, *x.shape[1:]))
        return ops.reshape(filled, (rows, length, *x.shape[1:]))
