"""Drawing a token from logits, under temperature, top-k and top-p."""

from typing import NamedTuple

import tensorflow as tf

NEVER = float("-inf")


class Controls(NamedTuple):
    """What a draw follows; the filters apply in this order.

    Attributes: all numbers, or all tensors (B,), of each row of a batch its own.
        temperature: divides the logits; 0 takes the most probable token.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose probability reaches p
            (Holtzman et al. 2020); 1 keeps all.
    """

    temperature: float | tf.Tensor = 1.0
    top_k: int | tf.Tensor = 0
    top_p: float | tf.Tensor = 1.0


def filter_logits(logits: tf.Tensor, controls: Controls) -> tf.Tensor:
    """Logits after temperature, top-k and top-p; what is ruled out becomes -inf.

    Tokens that tie with the last one kept are kept too.

    Args:
        logits: (B, K, V) float32, with numbers in `controls` (..., V); -inf where a token is ruled
            out already.
        controls: `Controls` or what has its fields; the temperature is above 0.

    Returns:
        float32 of the shape of the logits.
    """
    if tf.is_tensor(controls.temperature):
        return _filtered_by_row(logits, controls)
    logits = logits / controls.temperature
    size = logits.shape[-1]
    if 0 < controls.top_k < size:
        least = tf.math.top_k(logits, controls.top_k)[0][..., -1:]
        logits = tf.where(logits < least, NEVER, logits)
    if controls.top_p < 1:
        # After top-k no more than k can be kept, so only they need sorting.
        ordered, _ = tf.math.top_k(logits, min(controls.top_k or size, size))
        before = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)
        # The first token whose predecessors reach p is out; the most probable one never is.
        kept = tf.where(before < controls.top_p, ordered, float("inf"))
        logits = tf.where(logits < tf.reduce_min(kept, -1, keepdims=True), NEVER, logits)
    return logits


def _filtered_by_row(logits: tf.Tensor, controls: Controls) -> tf.Tensor:
    """`filter_logits` where each row has its own controls: one sort of all tokens for both."""
    temperature, top_k, top_p = (x[:, None, None] for x in controls)  # (B, 1, 1)
    logits = logits / temperature
    ordered = tf.sort(logits, axis=-1, direction="DESCENDING")  # (B, K, V)
    places = tf.range(logits.shape[-1])
    kept = (places < top_k) | (top_k <= 0)
    share = tf.nn.softmax(tf.where(kept, ordered, NEVER))
    kept &= (tf.cumsum(share, axis=-1, exclusive=True) < top_p) | (top_p >= 1)
    least = tf.reduce_min(tf.where(kept, ordered, float("inf")), -1, keepdims=True)
    return tf.where(logits < least, NEVER, logits)


def draw(logits: tf.Tensor, uniform: tf.Tensor, controls: Controls) -> tf.Tensor:
    """One token for each row of logits.

    Args:
        logits: (B, K, V) float32; -inf where a token is ruled out.
        uniform: (B, K) float32 in [0, 1); the same number draws the same token.
        controls: as for `filter_logits`; the temperature may be 0.

    Returns:
        (B, K) int32.
    """
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    by_row = tf.is_tensor(controls.temperature)
    if not by_row and controls.temperature == 0:
        return best
    if by_row:
        greedy = (controls.temperature <= 0)[:, None]  # (B, 1)
        heat = tf.where(controls.temperature > 0, controls.temperature, 1.0)
        controls = controls._replace(temperature=heat)
    weights = tf.nn.softmax(filter_logits(logits, controls))
    total = tf.cumsum(weights, axis=-1)
    # The first token whose share, with all before it, passes u: one without any is never it.
    drawn = tf.reduce_sum(tf.cast(total <= uniform[..., None] * total[..., -1:], tf.int32), -1)
    return tf.where(greedy, best, drawn) if by_row else drawn
