"""Greedy search and sampling inside the graph, over the step functions of beam search."""

from typing import Any

import tensorflow as tf

from macaron_tf.decoding.beam_search import NEVER, StepFunction, loop_shapes
from macaron_tf.decoding.config import SamplingConfig
from macaron_tf.special_ids import BOS, EOS, PAD


def filter_logits(logits: tf.Tensor, config: SamplingConfig) -> tf.Tensor:
    """Logits after temperature, top-k and top-p; what is ruled out becomes -inf.

    Tokens that tie with the last one kept are kept too.

    Args:
        logits: (..., V) float32; -inf where a token is ruled out already.
        config: the settings; `temperature` above 0.

    Returns:
        (..., V) float32.
    """
    logits = logits / config.temperature
    size = logits.shape[-1]
    if 0 < config.top_k < size:
        least = tf.math.top_k(logits, config.top_k)[0][..., -1:]
        logits = tf.where(logits < least, NEVER, logits)
    if config.top_p < 1:
        # After top-k no more than k can be kept, so only they need sorting.
        ordered, _ = tf.math.top_k(logits, min(config.top_k or size, size))
        before = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)
        # The first token whose predecessors reach p is out; the most probable one never is.
        kept = tf.where(before < config.top_p, ordered, float("inf"))
        logits = tf.where(logits < tf.reduce_min(kept, -1, keepdims=True), NEVER, logits)
    return logits


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
            the sentence's place in the batch, and XLA has a stream of its own.
        limits: (B,) int32, each sentence's greatest length with EOS; default T for all.
        vocabulary_size: ids from here up are never produced; default V.

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

    def step(index, tokens, ids, log_probs, ended, cache):
        logits, cache = step_fn(tokens, index, context, cache)
        logits = tf.cast(logits, tf.float32)  # (B, K, V)
        all_ids = tf.range(logits.shape[-1])
        barred = (all_ids == PAD) | (all_ids == BOS)
        if vocabulary_size is not None:
            barred |= all_ids >= vocabulary_size
        barred |= (all_ids == EOS) & (index < config.min_length)
        choices = tf.where(barred, NEVER, logits)
        if config.temperature > 0:
            # The Gumbel-max trick draws from the softmax exactly, with one argmax. Folding the
            # place into the seed gives every step its own stream.
            uniform = tf.random.stateless_uniform(
                tf.shape(logits), tf.stack([seed[0], seed[1] + index]), 1e-30, 1.0, alg="philox"
            )
            choices = filter_logits(choices, config) - tf.math.log(-tf.math.log(uniform))
        tokens = tf.argmax(choices, axis=-1, output_type=tf.int32)  # (B, K)
        tokens = tf.where((index + 1 >= limits)[:, None], EOS, tokens)
        chosen = tf.gather(logits, tokens, batch_dims=2) - tf.reduce_logsumexp(logits, -1)
        log_probs += tf.where(ended, 0.0, chosen)
        tokens = tf.where(ended, PAD, tokens)
        ids = tf.where(places == index, tokens[:, :, None], ids)
        return index + 1, tokens, ids, log_probs, ended | (tokens == EOS), cache

    shape = [batch_size, samples]
    start = (
        tf.constant(0),
        tf.fill(shape, BOS),
        tf.fill([*shape, max_length], PAD),
        tf.zeros(shape),
        tf.fill(shape, False),
        cache,
    )
    _, _, ids, log_probs, _, _ = tf.while_loop(
        lambda index, tokens, ids, log_probs, ended, cache: ~tf.reduce_all(ended),
        step,
        start,
        shape_invariants=loop_shapes(start),
        maximum_iterations=max_length,
    )
    lengths = tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)
    return {"ids": ids, "log_probs": log_probs, "lengths": lengths}
