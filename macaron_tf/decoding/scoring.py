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


def score_continuations(network, token_ids: tf.Tensor, starts: tf.Tensor) -> dict[str, tf.Tensor]:
    """How probable a language model finds the ends of rows, given their beginnings.

    Args:
        network: has `hidden_states({"token_ids": (B, L)}, training=False) -> (B, L, D)` and
            `logits (N, D) -> (N, V)`, as `LanguageModel`.
        token_ids: (B, L) int32, PAD after.
        starts: (B,) int32, 1 or more: the place of the first token that counts.

    Returns:
        "log_probs" (B,) float32, the sum over the tokens from `starts` on; "lengths" (B,) int32,
        their number; "greedy" (B,) bool, whether each of them is the likeliest at its place.
    """
    hidden = network.hidden_states({"token_ids": token_ids[:, :-1]}, training=False)
    labels = token_ids[:, 1:]  # (B, L - 1)
    counted = (labels != PAD) & (tf.range(1, tf.shape(token_ids)[1]) >= starts[:, None])
    places = tf.where(counted)  # (N, 2): the table of the vocabulary is only read at these
    logits = tf.cast(network.logits(tf.gather_nd(hidden, places)), tf.float32)  # (N, V)
    wanted, rows = tf.gather_nd(labels, places), places[:, 0]  # (N,)
    chosen = tf.gather(logits, wanted, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)
    likeliest = tf.argmax(logits, axis=-1, output_type=wanted.dtype)
    count = tf.shape(token_ids)[0]
    missed = tf.math.unsorted_segment_sum(tf.cast(likeliest != wanted, tf.int32), rows, count)
    return {
        "log_probs": tf.math.unsorted_segment_sum(chosen, rows, count),
        "lengths": tf.math.unsorted_segment_sum(tf.ones_like(wanted), rows, count),
        "greedy": missed == 0,
    }
