"""Greedy search and sampling inside the graph, over the step functions of beam search."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from macaron_tf.decoding.beam_search import StepFunction, loop_shapes, read_before
from macaron_tf.decoding.config import SamplingConfig
from macaron_tf.decoding.drawing import NEVER, draw, uniforms
from macaron_tf.special_ids import BOS, EOS, PAD


def sample(
    step_fn: StepFunction,
    context: Any,
    cache: Any,
    batch_size: int | tf.Tensor,
    config: SamplingConfig,
    max_length: int | tf.Tensor,
    *,
    seed: tf.Tensor | int,
    limits: tf.Tensor | None = None,
    vocabulary_size: int | None = None,
    before: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """Draws `config.num_samples` outputs a sentence; greedy search at temperature 0.

    At a sentence's limit EOS is taken whatever its probability. Works under XLA and in a
    SavedModel, like `beam_search`.

    Args:
        step_fn: as in `beam_search`, with K = `config.num_samples`.
        context: as in `beam_search`.
        cache: as in `beam_search`; never reordered.
        batch_size: B.
        config: the settings.
        max_length: T, the places of the output; a Python int under XLA.
        seed: scalar or (2,) int. The same seed and batch give the same draws; a draw depends on
            the sentence's place in the batch.
        limits: (B,) int32, each sentence's greatest length with EOS; default T for all.
        vocabulary_size: ids from here up are never produced; default V.
        before: as in `beam_search`.

    Returns:
        "ids" (B, K, T) int32, EOS-terminated, PAD after; "log_probs" (B, K) float32, under the
        model itself (before temperature and filters); "lengths" (B, K) int32, EOS included.
    """
    samples = config.num_samples
    limits = tf.fill([batch_size], max_length) if limits is None else limits
    limits = tf.maximum(tf.minimum(tf.cast(limits, tf.int32), max_length), 1)
    seed = tf.cast(tf.convert_to_tensor(seed), tf.int32)
    seed = tf.stack([seed, 0]) if seed.shape.rank == 0 else seed
    places = tf.range(max_length)
    shape = [batch_size, samples]
    streams = tf.reshape(tf.range(batch_size * samples), shape)

    def step(index, tokens, ids, log_probs, ended, cache):
        logits, cache = step_fn(tokens, index + len(before), context, cache)
        logits = tf.cast(logits, tf.float32)  # (B, K, V)
        all_ids = tf.range(logits.shape[-1])
        barred = (all_ids == PAD) | (all_ids == BOS)
        if vocabulary_size is not None:
            barred |= all_ids >= vocabulary_size
        barred |= (all_ids == EOS) & (index < config.min_length)
        choices = tf.where(barred, NEVER, logits)
        tokens = draw(choices, uniforms(seed, streams, index), config)  # (B, K)
        tokens = tf.where((index + 1 >= limits)[:, None], EOS, tokens)
        chosen = tf.gather(logits, tokens, batch_dims=2) - tf.reduce_logsumexp(logits, -1)
        log_probs += tf.where(ended, 0.0, chosen)
        tokens = tf.where(ended, PAD, tokens)
        ids = tf.where(places == index, tokens[:, :, None], ids)
        return index + 1, tokens, ids, log_probs, ended | (tokens == EOS), cache

    start = (
        tf.constant(0),
        tf.fill(shape, BOS),
        tf.fill([*shape, max_length], PAD),
        tf.zeros(shape),
        tf.fill(shape, False),
        cache,
    )
    shapes = loop_shapes(start)  # what may grow does so from here on
    start = (*start[:-1], read_before(step_fn, before, start[1], context, cache))
    _, _, ids, log_probs, _, _ = tf.while_loop(
        lambda index, tokens, ids, log_probs, ended, cache: ~tf.reduce_all(ended),
        step,
        start,
        shape_invariants=shapes,
        maximum_iterations=max_length,
    )
    lengths = tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)
    return {"ids": ids, "log_probs": log_probs, "lengths": lengths}
