"""Log-probabilities of given outputs."""

import tensorflow as tf

from macaron_tf.special_ids import PAD


def score_targets(logits: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
    """How probable the model finds given target ids.

    Args:
        logits: (B, T, V), the model's output for the decoder input BOS + target[:-1].
        target: (B, T) int32, ids with EOS, PAD after.

    Returns:
        "token_log_probs" (B, T) float32, 0 at PAD; "log_probs" (B,) float32, their sum;
        "lengths" (B,) int32, tokens with EOS.
    """
    logits = tf.cast(logits, tf.float32)
    present = target != PAD
    chosen = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    token_log_probs = tf.where(present, chosen, 0.0)
    return {
        "token_log_probs": token_log_probs,
        "log_probs": tf.reduce_sum(token_log_probs, axis=-1),
        "lengths": tf.reduce_sum(tf.cast(present, tf.int32), axis=-1),
    }
