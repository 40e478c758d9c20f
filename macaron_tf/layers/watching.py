"""Recording of intermediate results: attention weights and inputs of recurrences."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_kept: contextvars.ContextVar[list | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def watching() -> Iterator[list[tuple[Any, Any]]]:
    """Within this context, layers record their intermediate results.

    Yields a list, to which each call of a layer appends the layer and its tensor: of attention the
    float32 weights `(B, H, T, S)` before dropout, of a `SwishRNN` the inputs of recurrence and
    gate, concatenated, `(B, L, 2 R)`. Nothing is computed additionally, but fused attention does
    not run.

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
    """Whether the caller is inside a `watching` context."""
    return _kept.get() is not None


def note(layer, tensor) -> None:
    """Appends a layer and its tensor to the list of the enclosing `watching` context, if any."""
    kept = _kept.get()
    if kept is not None:
        kept.append((layer, tensor))
