"""What a model of plain sequences learns: numbers, classes, or which keys are pressed."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.checks import check_choice
from macaron_tf.objectives.base import hits

LOSSES = ("bernoulli", "classes", "squared_error")


@dataclass(frozen=True)
class SequenceObjective:
    """The mean loss over a batch's answers, one a position or one a sequence.

    Attributes:
        loss: `"bernoulli"`, the negative log-likelihood (nats) of O keys, each of them pressed or
            not: summed over the keys, so that an answer is a frame; `"classes"`, cross-entropy;
            or `"squared_error"`, its mean over the O numbers.
        skip_padding: leave out answers of weight 0 before the scores are computed; the shapes are
            then dynamic.

    Call arguments: `network`, a `TemporalModel`; `batch` of `inputs`; `targets`, `(..., O)` of
    floats or `(...,)` of classes; and `weight (...,)` float32, 0 where there is nothing to answer;
    `...` is `(B, L)`, or `(B,)` where the network answers at the last position only; `training`.
    Returns float32 sums over the batch: `loss_sum`, `weight` and, of classes, `nll_sum` and,
    outside training, `correct_sum`.

    Raises:
        ValueError: an unknown loss.

    References: Bai et al. 2018, section 4.
    """

    loss: str
    skip_padding: bool = True

    def __post_init__(self):
        check_choice("loss", self.loss, LOSSES)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of an evaluation, as `metrics_from_sums` names them."""
        return ("loss", "perplexity", "accuracy") if self.loss == "classes" else ("loss",)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        hidden = network.hidden_states(batch["inputs"], training=training)  # (..., D)
        rank = len(batch["weight"].shape)
        # (..., D) -> (N, D); (...,) -> (N,); (..., O) or (...,) -> (N, O) or (N,)
        hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
        weights = tf.reshape(batch["weight"], (-1,))
        targets = batch["targets"]
        targets = tf.reshape(targets, (-1, *targets.shape[rank:]))
        if self.skip_padding:
            used = tf.where(weights > 0)[:, 0]
            hidden, weights, targets = (tf.gather(x, used) for x in (hidden, weights, targets))
        scores = tf.cast(network.scores(hidden), tf.float32)  # (N, O)
        losses = self._losses(scores, targets)  # (N,)
        loss_sum = tf.reduce_sum(losses * weights)
        sums = {"loss_sum": loss_sum, "weight": tf.reduce_sum(weights)}
        if self.loss == "classes":
            sums["nll_sum"] = loss_sum
            if not training:
                sums["correct_sum"] = tf.reduce_sum(hits(scores, targets) * weights)
        return sums

    def _losses(self, scores: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        if self.loss == "classes":
            return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores)
        if self.loss == "squared_error":
            return tf.reduce_mean(tf.square(scores - targets), axis=-1)
        return tf.reduce_sum(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=scores), axis=-1
        )
