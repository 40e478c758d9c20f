"""What a span reader learns: where the answer begins and where it ends."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.cross_entropy import hits
from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class SpanObjective:
    """The mean of two cross-entropies over the positions: of the start and of the end.

    Call arguments: `network`, an `EncoderSpanReader`; `batch` of `token_ids (B, L)`, `segment_ids
    (B, L)`, `label (B, 2)` int32 (first and last position, 0 and 0 for no answer) and `weight
    (B,)` float32, 0 in rows of padding, whose label may be anything; `training`. Returns float32
    sums over the batch: `loss_sum`, `weight`, `input_tokens`, and, outside training,
    `correct_sum`, the rows whose likeliest start and end are both right.

    References: Devlin et al. 2018 (BERT), section 4.2 and its released code.
    """

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        logits = network(encoder_inputs(batch), training=training)  # (B, 2, L)
        logits, weights = tf.cast(logits, tf.float32), batch["weight"]
        # A label out of range gives a loss of NaN, which stays NaN when multiplied by 0.
        labels = tf.where(weights[:, None] > 0, batch["label"], tf.zeros_like(batch["label"]))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (B, 2)
        real = tf.cast(batch["token_ids"] != PAD, tf.float32)  # (B, L)
        sums = {
            "loss_sum": tf.reduce_sum(tf.reduce_mean(losses, axis=1) * weights),
            "weight": tf.reduce_sum(weights),
            "input_tokens": tf.reduce_sum(real),
        }
        if not training:
            both = tf.reduce_prod(hits(logits, labels), axis=1)  # (B, 2) -> (B,)
            sums["correct_sum"] = tf.reduce_sum(both * weights)
        return sums
