"""Recording of intermediate results, such as attention weights."""

import contextlib
import contextvars
from typing import Any

from macaron_tf.kernels.choice import scoped

_records: contextvars.ContextVar[list | None] = contextvars.ContextVar("records", default=None)


def watching() -> contextlib.AbstractContextManager[list[tuple[Any, Any]]]:
    """Records the intermediate results of layers within this context.

    Yields a list, to which each call of an attention layer or a `SwishRNN` appends a pair of the
    layer and a tensor. For attention, the tensor contains the float32 attention weights `(B, H, T,
    S)` before dropout. For `SwishRNN`, the tensor `(B, L, 2 R)` contains the inputs of the
    recurrence and of the gate side by side. Nothing is appended by a `SwishRNN` in a TensorFlow
    graph that XLA compiles, by a `SwishRNN` that continues from a state, and by attention to a
    read-only cache. Recording adds no computation, but disables fused attention kernels.

    Example:
        with watching() as records:
            encoder(token_ids)
        for layer, weights in records:
            print(layer.path, weights.shape)
    """
    return scoped(_records, [])


def is_watching() -> bool:
    """Returns whether a `watching` context is active."""
    return _records.get() is not None


def note(layer, tensor) -> None:
    """Appends a layer and a tensor to the list of the active `watching` context, if any."""
    records = _records.get()
    if records is not None:
        records.append((layer, tensor))
