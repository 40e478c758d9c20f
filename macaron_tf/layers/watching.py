"""Intermediate results of layers: attention's weights, the inputs of recurrences."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_kept: contextvars.ContextVar[list | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def watching() -> Iterator[list[tuple[Any, Any]]]:
    """Layers that are called within it note what they compute on the way.

    Gives a list, which grows by a layer and its tensor with each call: of attention the float32
    weights `(B, H, T, S)` before dropout, of a `SwishRNN` the inputs of recurrence and gate, side
    by side, `(B, L, 2 R)`. Nothing is computed that is not computed otherwise.

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
    """Whether a `watching` wants the results of layers called now."""
    return _kept.get() is not None


def note(layer, tensor) -> None:
    """Adds a layer's tensor to the list of the `watching` that it is called within, if any."""
    kept = _kept.get()
    if kept is not None:
        kept.append((layer, tensor))
