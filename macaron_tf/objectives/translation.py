"""What a translation model learns: the next target token, smoothed."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import hits, label_smoothed_cross_entropy
from macaron_tf.special_ids import BOS, PAD


def shift_right(target: tf.Tensor, first: int = BOS) -> tf.Tensor:
    """The decoder's input: BOS (or another first id), then the target without its last token.

    Args:
        target: (B, T) int.
        first: what it begins with.

    Returns:
        (B, T).
    """
    first = tf.fill([tf.shape(target)[0], 1], tf.constant(first, target.dtype))
    return tf.concat([first, target[:, :-1]], axis=1)


@dataclass(frozen=True)
class TranslationObjective:
    """Label-smoothed cross-entropy of the target given the source, padding left out.

    Attributes:
        label_smoothing: e of the smoothed target distribution.
        skip_padding: only real tokens reach the vocabulary projection, half of the work of a
            small model. The number of rows is then dynamic: set False where shapes must be
            static (XLA, TPU); the result is the same.
        first: what the decoder reads before a target; EOS where targets begin with BOS themselves.

    Call arguments: `network`, an `EncoderDecoder`; `batch` of `source (B, S)` and `target (B, T)`
    ids, the target ending in EOS; `training`. Returns float32 sums over the batch: `loss_sum`,
    `weight` (the number of target tokens), `nll_sum` (nats), `source_tokens`, and, outside
    training, `correct_sum` (tokens predicted right).
    """

    label_smoothing: float = 0.1
    skip_padding: bool = True
    first: int = BOS

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        target = batch["target"]
        inputs = {"source": batch["source"], "target": shift_right(target, self.first)}
        hidden = network.hidden_states(inputs, training=training)  # (B, T, D)
        # (B, T, D) -> (N, D), N = B T
        hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
        labels = tf.reshape(target, (-1,))
        if self.skip_padding:
            real = tf.where(labels != PAD)[:, 0]
            hidden, labels = tf.gather(hidden, real), tf.gather(labels, real)
        weights = tf.cast(labels != PAD, tf.float32)
        logits = network.logits(hidden)  # (N, V)
        loss, nll = label_smoothed_cross_entropy(logits, labels, self.label_smoothing)
        sums = {
            "loss_sum": tf.reduce_sum(loss * weights),
            "weight": tf.reduce_sum(weights),
            "nll_sum": tf.reduce_sum(nll * weights),
            "source_tokens": tf.reduce_sum(tf.cast(batch["source"] != PAD, tf.float32)),
        }
        if not training:
            sums["correct_sum"] = tf.reduce_sum(hits(logits, labels) * weights)
        return sums
