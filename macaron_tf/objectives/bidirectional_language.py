"""What ELMo learns: the next word from those before it, the previous one from those after it."""

import math
from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import hits
from macaron_tf.objectives.masking import choice as draws


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


@dataclass(frozen=True)
class BidirectionalLanguageObjective:
    """Cross-entropy of each word given the words before it, and of each given those after it.

    Attributes:
        samples: in training score a word beside so many others, drawn the more often the more
            frequent they are, instead of beside all; 0 = all. The vocabulary is then in order of
            frequency. A batch decides its draws: a resumed run has those of an uninterrupted one.

    Call arguments: `network`, an `Elmo`; `batch` of `characters (B, L, C)` and `words (B, L)`, the
    words' numbers in the vocabulary, -1 at padding; `training`. Returns float32 sums over the
    batch: `loss_sum` and `nll_sum` (nats) over both directions, `weight`, the number of words
    predicted, `forward_sum`, `backward_sum` with `forward_weight` and `backward_weight`, and,
    outside training, `correct_sum`.

    References: Peters et al. 2018 (ELMo), section 3.1; sampling: Jean et al. 2015.
    """

    samples: int = 0
    metric_names = ("loss", "perplexity", "forward", "backward", "accuracy")

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        forward, backward = network.hidden_states(batch["characters"], training=training)
        words = batch["words"]
        sums = {"loss_sum": 0.0, "weight": 0.0, "correct_sum": 0.0}
        places = tf.range(1, tf.size(words) + 1)
        seed = [tf.reduce_sum(words), tf.reduce_sum(tf.reshape(words, (-1,)) * places)]
        seeds = draws.split(tf.stack(seed), 2)
        # Position k of the forward model answers for k + 1, of the backward one for k - 1.
        for name, hidden, answers, given, seed in (
            ("forward", forward[:, :-1], words[:, 1:], words[:, :-1], seeds[0]),
            ("backward", backward[:, 1:], words[:, :-1], words[:, 1:], seeds[1]),
        ):
            # (B, L - 1, P) -> (N, P) and (B, L - 1) -> (N,), N = B (L - 1)
            hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
            weights = tf.cast((answers >= 0) & (given >= 0), tf.float32)
            weights, answers = tf.reshape(weights, (-1,)), tf.reshape(answers, (-1,))
            answers = tf.maximum(answers, 0)
            samples = self.samples if training else 0
            losses, correct = _losses(network, hidden, answers, samples, seed)
            sums[f"{name}_sum"] = tf.reduce_sum(losses * weights)
            sums[f"{name}_weight"] = tf.reduce_sum(weights)
            sums["loss_sum"] += sums[f"{name}_sum"]
            sums["weight"] += sums[f"{name}_weight"]
            sums["correct_sum"] += tf.reduce_sum(correct * weights)
        if training:
            del sums["correct_sum"]
        return {**sums, "nll_sum": sums["loss_sum"]}


def _losses(network, hidden, answers, samples: int, seed) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy `(N,)` and hits `(N,)`; beside samples the hits are not known: 0."""
    if samples:
        output = network.output_layer
        kernel, bias = tf.convert_to_tensor(output.kernel), tf.convert_to_tensor(output.bias)
        draw = log_uniform(seed, samples, bias.shape[0])
        losses = sampled_cross_entropy(tf.cast(hidden, tf.float32), kernel, bias, answers, draw)
        return losses, tf.zeros_like(losses)
    scores = tf.cast(network.scores(hidden), tf.float32)  # (N, V)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(answers, scores)
    return losses, hits(scores, answers)
