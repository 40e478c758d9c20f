"""From source ids to target ids: an encoder-decoder model joined to a search."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from macaron_tf.decoding.beam_search import beam_search, gather_beams
from macaron_tf.decoding.config import BeamSearchConfig, LengthLimits, SamplingConfig
from macaron_tf.decoding.sampling import sample
from macaron_tf.decoding.scoring import score_targets
from macaron_tf.special_ids import BOS, PAD


def target_limits(source: tf.Tensor, config: LengthLimits) -> tuple[int | tf.Tensor, tf.Tensor]:
    """How long the output may be: min(max_length, ceil(ratio * source length) + offset).

    Args:
        source: (B, S) int32, PAD after EOS.
        config: holds the ratio, the offset and the cap; at least one token is always allowed.

    Returns:
        T, the batch's greatest limit: a Python int from S where S is static (as XLA needs), else
        a scalar int32 from the longest sentence; and (B,) int32, each sentence's own limit,
        which padding does not change.
    """
    lengths = tf.reduce_sum(tf.cast(source != PAD, tf.int32), axis=1)
    limits = tf.cast(tf.math.ceil(config.max_length_ratio * tf.cast(lengths, tf.float32)), tf.int32)
    limits = tf.clip_by_value(limits + config.max_length_offset, 1, config.max_length)
    if source.shape[1] is None:
        return tf.maximum(tf.reduce_max(limits), 1), limits
    greatest = math.ceil(config.max_length_ratio * source.shape[1]) + config.max_length_offset
    return min(max(greatest, 1), config.max_length), limits


def _fixed(max_length: int | tf.Tensor, before: Sequence[int]) -> int | None:
    """A cache's room if it is static, as under XLA; None, for a growing one, where it is not."""
    return max_length + len(before) if isinstance(max_length, int) else None


def translate_ids(
    model: Any,
    source: tf.Tensor,
    config: BeamSearchConfig,
    vocabulary_size: int | None = None,
    before: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """Translates a batch of source ids by beam search.

    Args:
        model: has `start(source, beam_size, max_length) -> (context, cache)`, max_length an int
            or None, and `step(tokens, index, context, cache) -> (logits, cache)`, see
            `beam_search`; and may have `reorder(cache, parents) -> cache`.
        source: (B, S) int32, each row ending with EOS, PAD after.
        config: the settings.
        vocabulary_size: ids from here up are never produced (a padded vocabulary's real size).
        before: ids that the decoder reads before BOS, which no limit counts.

    Returns:
        `beam_search`'s dictionary: "ids" (B, N, T), "scores", "log_probs", "lengths" (B, N).
    """
    max_length, limits = target_limits(source, config)
    context, cache = model.start(source, config.beam_size, _fixed(max_length, before))
    return beam_search(
        model.step,
        context,
        cache,
        tf.shape(source)[0] if source.shape[0] is None else source.shape[0],
        config,
        max_length,
        limits=limits,
        vocabulary_size=vocabulary_size,
        reorder_fn=getattr(model, "reorder", gather_beams),
        before=before,
    )


def sample_ids(
    model: Any,
    source: tf.Tensor,
    config: SamplingConfig,
    seed: tf.Tensor | int,
    vocabulary_size: int | None = None,
    before: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """Translates a batch of source ids by sampling, or greedily at temperature 0.

    Args:
        model: as in `translate_ids`.
        source: (B, S) int32, each row ending with EOS, PAD after.
        config: the settings.
        seed: scalar or (2,) int.
        vocabulary_size: ids from here up are never produced.
        before: as in `translate_ids`.

    Returns:
        `sample`'s dictionary: "ids" (B, K, T), "log_probs", "lengths" (B, K).
    """
    max_length, limits = target_limits(source, config)
    context, cache = model.start(source, config.num_samples, _fixed(max_length, before))
    return sample(
        model.step,
        context,
        cache,
        tf.shape(source)[0] if source.shape[0] is None else source.shape[0],
        config,
        max_length,
        seed=seed,
        limits=limits,
        vocabulary_size=vocabulary_size,
        before=before,
    )


def score_ids(model: Any, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """Log-probabilities of given translations.

    Args:
        model: called as `model({"source": (B, S), "target": (B, T)}, training=False)`.
        source: (B, S) int32, each row ending with EOS, PAD after.
        target: (B, T) int32, each row ending with EOS, PAD after.

    Returns:
        `score_targets`'s dictionary: "token_log_probs" (B, T), "log_probs", "lengths" (B,).
    """
    decoder_input = tf.pad(target[:, :-1], [[0, 0], [1, 0]], constant_values=BOS)
    logits = model({"source": source, "target": decoder_input}, training=False)
    return score_targets(logits, target)
