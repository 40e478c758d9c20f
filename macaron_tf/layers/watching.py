"""Recording of intermediate results, such as attention weights."""

import contextlib
import contextvars
from typing import Any

from macaron_tf.kernels.choice import scoped

_records: contextvars.ContextVar[list | None] = contextvars.ContextVar("records", default=None)


def watching() -> contextlib.AbstractContextManager[list[tuple[Any, Any]]]:
    """Records the intermediate results of layers within this context.

    Yields a list of pairs of a layer and a tensor: an attention's float32 weights `(B, H, T, S)`
    before dropout, or the inputs of a `SwishRNN`'s recurrence and gate, `(B, L, 2 R)`. A `SwishRNN`
    under XLA or continuing from a state is left out, as is attention to a read-only cache.
    Recording adds no computation, but disables fused attention kernels.

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
