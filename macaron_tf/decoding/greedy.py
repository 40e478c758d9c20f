"""Greedy search on Keras's JAX backend, for validation during training."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax import numpy as jnp

from macaron_tf.decoding.beam_search import LengthLimits, target_limits
from macaron_tf.distribution.mesh import whole
from macaron_tf.special_ids import BOS, EOS, PAD

# The batch size and the source length are padded to multiples of these two numbers, because JAX
# compiles the search once per shape.
_ROWS, _LENGTH = 16, 16


class GreedySearch:
    """Greedy search with an encoder-decoder, compiled by JAX.

    At each step, the search takes the most probable token, until EOS or the length limit.

    Args:
        model: encoder-decoder (see `macaron_tf.decoding.translator.translate_ids`).
        pieces: number of ids in the vocabulary. The search never produces an id of `pieces` or
            more.
        limits: limits of the output length.
    """

    def __init__(self, model: Any, pieces: int, limits: LengthLimits):
        self.model = model
        self.pieces = pieces
        self.limits = limits
        # The outputs are replicated, so that every process of a mesh can read them.
        self._search = jax.jit(self._outputs, static_argnames="room", out_shardings=whole())

    def __call__(
        self, batches: Iterable[tuple[np.ndarray, np.ndarray]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the outputs of each batch, in the format of `beam_search` with `n_best=1`.

        Args:
            batches: pairs of source ids `(B, S)` and a seed, which greedy search ignores.
        """
        for source, _ in batches:
            count, length = source.shape
            source = np.pad(source, [(0, -count % _ROWS), (0, -length % _LENGTH)])
            room, most = target_limits(tf.constant(source), self.limits)
            values = [variable.value for variable in self.model.variables]
            found = self._search(values, source, most.numpy(), room=room)
            yield {name: np.asarray(value)[:count] for name, value in found.items()}

    def _outputs(self, values, source, most, room: int) -> dict[str, jax.Array]:
        with keras.StatelessScope(zip(self.model.variables, values, strict=True)):
            context, cache = self.model.init_decode(source, 1, room)

            def step(index, state):
                tokens, ids, log_probs, cache = state
                logits, cache = self.model.decode_step(tokens[:, None], index, context, cache)
                scores = jax.nn.log_softmax(logits[:, 0])  # (B, V)
                columns = jnp.arange(scores.shape[1])
                barred = (columns == PAD) | (columns == BOS) | (columns >= self.pieces)
                barred |= (columns == EOS) & (index < self.limits.min_length)
                best = jnp.argmax(jnp.where(barred, -jnp.inf, scores), axis=-1).astype("int32")
                best = jnp.where(index + 1 >= most, EOS, best)
                over = (tokens == EOS) | (tokens == PAD)
                best = jnp.where(over, PAD, best)
                own = jnp.take_along_axis(scores, best[:, None], axis=1)[:, 0]
                return best, ids.at[:, index].set(best), log_probs + jnp.where(over, 0, own), cache

            rows = len(source)
            begin = jnp.full(rows, BOS, "int32"), jnp.zeros((rows, room), "int32")
            state = (*begin, jnp.zeros(rows), cache)
            _, ids, log_probs, _ = jax.lax.fori_loop(0, room, step, state)
        lengths = jnp.sum(ids != PAD, axis=1)
        return {
            "ids": ids[:, None],
            "scores": log_probs[:, None],
            "log_probs": log_probs[:, None],
            "lengths": lengths[:, None],
        }
