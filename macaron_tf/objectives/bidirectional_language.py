"""What ELMo learns: the next word from those before it, the previous one from those after it."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives import draws
from macaron_tf.objectives.cross_entropy import hits
from macaron_tf.objectives.sampled_softmax import log_uniform, sampled_cross_entropy


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
