"""Greedy search on Keras's JAX backend, for validation during training."""

from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax import numpy as jnp

from macaron_tf.decoding.beam_search import BeamSearchConfig, target_limits
from macaron_tf.distribution.mesh import replicated_sharding

# The batch size and the source length are padded to multiples of these two numbers, because JAX
# compiles the search once per shape.
_ROW_MULTIPLE, _LENGTH_MULTIPLE = 16, 16


class GreedySearch:
    """Greedy search with an encoder-decoder (see `translate_ids`), compiled by JAX.

    At each step, the search takes the most probable token with an id below `vocabulary_size`, until
    EOS or the length limit.
    """

    def __init__(self, model: Any, vocabulary_size: int, limits: BeamSearchConfig):
        self.model, self.vocabulary_size, self.limits = model, vocabulary_size, limits
        # The outputs are replicated, so that every process of a mesh can read them.
        self._search = jax.jit(
            self._outputs, static_argnames="max_length", out_shardings=replicated_sharding()
        )

    def __call__(self, source: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the outputs for source ids `(B, S)` as `beam_search` does, with score log P."""
        count, length = source.shape
        pad = self.model.config.special.pad
        paddings = [(0, -count % _ROW_MULTIPLE), (0, -length % _LENGTH_MULTIPLE)]
        source = np.pad(source, paddings, constant_values=pad)
        max_length, limits = target_limits(tf.constant(source), self.limits, pad)
        values = [variable.value for variable in self.model.variables]
        outputs = self._search(values, source, limits.numpy(), max_length=max_length)
        return {name: np.asarray(value)[:count] for name, value in outputs.items()}

    def _outputs(self, values, source, limits, max_length: int) -> dict[str, jax.Array]:
        special = self.model.config.special
        pad, begin, end = special.pad, special.begin, special.end
        with keras.StatelessScope(zip(self.model.variables, values, strict=True)):
            context, cache = self.model.init_decode(source, 1, max_length)

            def step(index, state):
                tokens, ids, log_probs, cache = state
                logits, cache = self.model.decode_step(tokens[:, None], index, context, cache)
                scores = jax.nn.log_softmax(logits[:, 0])  # (B, V)
                columns = jnp.arange(scores.shape[1])
                is_begin = (columns == begin) & (begin != end)
                is_suppressed = (columns == pad) | is_begin | (columns >= self.vocabulary_size)
                is_suppressed |= (columns == end) & (index < self.limits.min_length)
                best_ids = jnp.argmax(jnp.where(is_suppressed, -jnp.inf, scores), axis=-1)
                best_ids = jnp.where(index + 1 >= limits, end, best_ids.astype("int32"))
                has_ended = (tokens == end) | (tokens == pad) & (index > 0)
                best_ids = jnp.where(has_ended, pad, best_ids)
                best_log_probs = jnp.take_along_axis(scores, best_ids[:, None], axis=1)[:, 0]
                log_probs += jnp.where(has_ended, 0, best_log_probs)
                return best_ids, ids.at[:, index].set(best_ids), log_probs, cache

            rows = len(source)
            no_ids = jnp.full((rows, max_length), pad, "int32")
            state = (jnp.full(rows, begin, "int32"), no_ids, jnp.zeros(rows), cache)
            _, ids, log_probs, _ = jax.lax.fori_loop(0, max_length, step, state)
        lengths = jnp.sum(ids != pad, axis=1)
        outputs = {"ids": ids, "scores": log_probs, "log_probs": log_probs, "lengths": lengths}
        return {name: value[:, None] for name, value in outputs.items()}
