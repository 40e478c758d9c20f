"""Drawing a token from logits, under temperature, top-k and top-p."""

from typing import NamedTuple

import tensorflow as tf

# Columns judged together by their maximum. A vocabulary is padded to a multiple of 8.
GROUP_WIDTHS = (64, 32, 16, 8)


def top_k(scores: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Same as `tf.math.top_k`, ties included: the lower index comes first.

    The k largest lie in the k groups of columns with the largest maxima, and a maximum is a
    vector operation where a selection is not: 128 rows of 10,000 take 1.2 ms and not 4.2. All is
    of rank 2, since XLA sorts the whole of a tensor of rank 3 (213 ms).

    Args:
        scores: (N, V), V static.
        k: 1 to V.

    Returns:
        Values (N, k), largest first, and their int32 columns (N, k).
    """
    size = scores.shape[1]
    width = next((w for w in GROUP_WIDTHS if size % w == 0 and size // w >= k), None)
    if width is None:
        return tf.math.top_k(scores, k)
    grouped = tf.reshape(scores, [-1, size // width, width])  # (N, V / W, W)
    _, groups = tf.math.top_k(tf.reduce_max(grouped, axis=-1), k)
    groups = tf.sort(groups, axis=-1)  # (N, k), so that equal scores stay in order
    candidates = tf.reshape(tf.gather(grouped, groups, batch_dims=1), [-1, k * width])
    values, places = tf.math.top_k(candidates, k)
    return values, tf.gather(groups, places // width, batch_dims=1) * width + places % width


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(
    key: tuple[tf.Tensor, tf.Tensor], counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Threefry-2x32 with 20 rounds: 64 random bits for each key and counter.

    TensorFlow's own stateless draws take one seed for a whole tensor, and XLA fills it with other
    bits. Here each element has its own seed, so that a text's draws depend on nothing beside it.

    Args:
        key, counter: two uint32 words each, of shapes that broadcast.

    Returns:
        Two uint32 words of the common shape.

    References: Salmon et al. 2011, section 3.2.
    """
    keys = (*key, key[0] ^ key[1] ^ tf.constant(_PARITY, tf.uint32))
    left, right = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ _rotated(right, rotation)
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return left, right


def uniforms(seeds: tf.Tensor, streams: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Uniform draws.

    Args:
        seeds: (..., 2) int, the two words of a seed.
        streams, places: int32, of shapes that broadcast with `seeds[..., 0]`: equal seed, stream
            and place give equal draws.

    Returns:
        float32 in [0, 1), multiples of 2^-23, of the common shape.
    """
    words = [tf.bitcast(tf.cast(x, tf.int32), tf.uint32) for x in (seeds, streams, places)]
    bits, _ = threefry((words[0][..., 0], words[0][..., 1]), (words[2], words[1]))
    # 23 bits: with u < 1 - 2^-23 a product u * total is below total in float32 too.
    kept = tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32))
    return tf.cast(tf.bitcast(kept, tf.int32), tf.float32) * 2.0**-23


def _rotated(word: tf.Tensor, count: int) -> tf.Tensor:
    left = tf.bitwise.left_shift(word, tf.constant(count, tf.uint32))
    return left | tf.bitwise.right_shift(word, tf.constant(32 - count, tf.uint32))


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
