"""Cross-entropy beside a sample of a large vocabulary."""

import math

import tensorflow as tf

from macaron_tf.objectives import draws


def log_uniform(seed: tf.Tensor, count: int, classes: int) -> tf.Tensor:
    """Classes drawn with replacement, class k as often as ln((k + 2) / (k + 1)) / ln(V + 1).

    That is near the frequency of the k-th word of a vocabulary in order of frequency (Zipf).

    Args:
        seed: `(2,)` int.
        count: draws S.
        classes: V.

    Returns:
        The classes, `(S,)` int32.
    """
    uniform = draws.uniform(seed, 1, count)[0]
    # The inverse of the distribution function ln(k + 2) / ln(V + 1).
    drawn = tf.cast(tf.exp(uniform * math.log(classes + 1)), tf.int32) - 1
    return tf.minimum(drawn, classes - 1)  # float32 may round what is just below V + 1 up


def log_probability(classes: tf.Tensor, count: int) -> tf.Tensor:
    """ln of how often `log_uniform` draws each of some classes, of `count` there are."""
    k = tf.cast(classes, tf.float32)
    return tf.math.log(tf.math.log1p(1.0 / (k + 1.0)) / math.log(count + 1))


def sampled_cross_entropy(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor, draw: tf.Tensor
) -> tf.Tensor:
    """Cross-entropy of each label beside drawn classes instead of all.

    The sum over all classes is estimated: the label's own part is known, and each draw of another
    class stands for one S P-th of that class's part, if S draws hit it S P times in the mean. With
    more draws the loss tends to the whole softmax's. All shapes are static: TensorFlow's own
    sampled loss has an op that XLA has not.

    Args:
        hidden: `(N, D)`.
        kernel: `(D, V)`, the classes in order of frequency.
        bias: `(V,)`.
        labels: `(N,)` int.
        draw: the classes drawn, `(S,)`, by `log_uniform`.

    Returns:
        `(N,)` float32, nats.

    References: Bengio and Senecal 2008, "Adaptive Importance Sampling to Accelerate Training of a
    Neural Probabilistic Language Model"; Jean et al. 2015, section 3.
    """
    own = tf.reduce_sum(hidden * tf.gather(tf.transpose(kernel), labels), axis=-1)  # (N,)
    own += tf.gather(bias, labels)
    others = hidden @ tf.gather(kernel, draw, axis=1) + tf.gather(bias, draw)  # (N, S)
    others -= log_probability(draw, bias.shape[0]) + math.log(draw.shape[0])
    others = tf.where(labels[:, None] == draw, others.dtype.min, others)
    return tf.reduce_logsumexp(tf.concat([own[:, None], others], axis=1), axis=1) - own
