"""Prompts read many tokens at a time, before anything is drawn."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from macaron_tf.decoding.beam_search import loop_shapes
from macaron_tf.kernels import compiled_by_xla

ReadFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], Any]

# Tokens of a row that are read at once, so that memory does not grow with the square of a prompt:
# the scores of a layer, of 32 rows, 12 heads and 1,024 tokens before, are 0.4 GB and not 1.6.
_PIECE = 256


def reader(model: Any) -> ReadFunction | None:
    """How a model reads many tokens at once, `read` of `LanguageModel`; None where it cannot."""
    return model.read if getattr(model, "reads", False) else None


def read_together(
    read_fn: ReadFunction | None, ids: tf.Tensor, lengths: tf.Tensor, context: Any, cache: Any
) -> tuple[tf.Tensor, Any]:
    """Reads what can be of prompts before the first new token: all but the last of the shortest.

    The K samples of a row have the same past: it is read once. Under XLA, which knows no pieces of
    unknown lengths, nothing is read.

    Args:
        read_fn: `(tokens (B, L) int32, index scalar int32, context, cache) -> cache`, `tokens`
            being those at place `index` of the decoder's input and on, `cache` that of one sample
            a row; with None nothing is read.
        ids: (B, P) int32. lengths: (B,) int32, 1 or more.
        context, cache: as in `beam_search`, before the first step.

    Returns:
        scalar int32, how many tokens of each row have been read, and the cache behind them.
    """
    if read_fn is None or compiled_by_xla():
        return tf.constant(0), cache
    end = tf.reduce_min(lengths) - 1

    def piece(index, cache):
        following = tf.minimum(index + _PIECE, end)
        return following, read_fn(ids[:, index:following], index, context, cache)

    values = (tf.constant(0), tf.nest.map_structure(lambda x: x[:, :1], cache))
    index, read = tf.while_loop(
        lambda index, cache: index < end,
        piece,
        values,
        shape_invariants=loop_shapes(values, fixed_rows=False),
    )

    def of_all(one, empty):
        every = tf.repeat(one, tf.shape(empty)[1], axis=1)  # (B, 1, ...) -> (B, K, ...)
        return tf.ensure_shape(every, loop_shapes(empty))

    return index, tf.nest.map_structure(of_all, read, cache)
