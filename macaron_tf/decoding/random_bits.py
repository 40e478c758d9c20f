"""Random numbers that depend on a seed and a place alone, the same under XLA and without it."""

import tensorflow as tf

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
