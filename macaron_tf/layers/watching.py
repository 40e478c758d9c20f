"""Recording of intermediate results, such as attention weights."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_kept: contextvars.ContextVar[list | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def watching() -> Iterator[list[tuple[Any, Any]]]:
    """Records the intermediate results of layers within this context.

    The context manager yields a list. Each call of a layer appends the pair of the layer and a
    tensor. For attention, the tensor contains the float32 attention weights `(B, H, T, S)` before
    dropout. For `SwishRNN`, the tensor `(B, L, 2 R)` contains the inputs of the recurrence and of
    the gate side by side. Recording adds no computation, but disables fused attention kernels.

    Example:
        with watching() as kept:
            encoder(token_ids)
        for layer, weights in kept:
            print(layer.path, weights.shape)
    """
    kept: list[tuple[Any, Any]] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def watched() -> bool:
    """Returns whether a `watching` context is active."""
    return _kept.get() is not None


def note(layer, tensor) -> None:
    """Appends a layer and a tensor to the list of the active `watching` context, if any."""
    kept = _kept.get()
    if kept is not None:
        kept.append((layer, tensor))
