"""Rows without their padding, for inference on texts of varied lengths."""

import contextlib
import contextvars
from collections.abc import Iterator

from keras import ops

from macaron_tf.kernels import compiled_by_xla

_packs: contextvars.ContextVar[bool] = contextvars.ContextVar("packs", default=False)


@contextlib.contextmanager
def packing_scope() -> Iterator[None]:
    """Encoders that are called within it, without training, compute no padding.

    Embeddings, norms and feed-forwards take the real tokens alone, and so do the projections of
    attention, whose scores stay padded; other mixers are given padded rows. Of a batch whose rows
    have a third of the longest one's length on average, that is nearly a third of the products.
    The matrices of activations have rank 2, which TensorFlow fuses with bias and GELU.
    Hidden states of padding are zeros. The shapes depend on the data, so graphs that XLA compiles
    keep their padding.
    """
    token = _packs.set(True)
    try:
        yield
    finally:
        _packs.reset(token)


def packs() -> bool:
    """Whether the caller is within a `packing_scope`, and not compiled by XLA."""
    return _packs.get() and not compiled_by_xla()


class Packing:
    """The real tokens of rows `(B, T)`, one after the other: `(N, ...)` for `(B, T, ...)`.

    Args:
        mask: `(B, T)` boolean, False at padding.
    """

    def __init__(self, mask):
        self._shape = ops.shape(mask)
        (self._places,) = ops.nonzero(ops.reshape(mask, (-1,)))  # (N,), b T + t of each token

    def packed(self, x):
        """`(B, T, ...)` without its padding: `(N, ...)`."""
        # (B, T, ...) -> (B T, ...) -> (N, ...)
        return ops.take(ops.reshape(x, (-1, *x.shape[2:])), self._places, axis=0)

    def padded(self, x):
        """`(N, ...)` with padding of zeros: `(B, T, ...)`."""
        rows, length = self._shape
        # (N, ...) -> (B T, ...) -> (B, T, ...)
        filled = ops.scatter(self._places[:, None], x, (rows * length, *x.shape[1:]))
        return ops.reshape(filled, (rows, length, *x.shape[1:]))
