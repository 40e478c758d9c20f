"""What a classifier learns: one label, or one number, for each row."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.checks import check_count
from macaron_tf.objectives.cross_entropy import hits
from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class ClassificationObjective:
    """Cross-entropy of a class, or the squared error of a number.

    Attributes:
        num_classes: C; 1 for a number.

    Call arguments: `network`, an `EncoderClassifier`; `batch` of `token_ids (B, L)`, optionally
    `segment_ids (B, L)`, `label (B,)` (int32 from 0 to C - 1; float32 for a number) and
    `weight (B,)` float32, 0 in rows of padding, whose label may be anything; `training`. Returns
    float32 sums over the batch: `loss_sum`, `weight`, `input_tokens`, and, of classes and
    outside training, `correct_sum`.

    Raises:
        ValueError: num_classes is below 1; (when called) the network has another number.
    """

    num_classes: int

    def __post_init__(self):
        check_count("num_classes", self.num_classes)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        logits = network(encoder_inputs(batch), training=training)  # (B, C)
        return self.sums(logits, batch, training)

    def sums(
        self, logits: tf.Tensor, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        """What a call returns, of the network's logits `(B, C)`."""
        if logits.shape[-1] != self.num_classes:
            raise ValueError(
                f"num_classes={self.num_classes}, but the network scores {logits.shape[-1]}"
            )
        logits, weights = tf.cast(logits, tf.float32), batch["weight"]
        # A loss of NaN stays NaN when multiplied by 0.
        labels = tf.where(weights > 0, batch["label"], tf.zeros_like(batch["label"]))
        if self.num_classes == 1:
            loss = tf.square(logits[:, 0] - labels)  # (B,)
        else:
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (B,)
        real = tf.cast(batch["token_ids"] != PAD, tf.float32)  # (B, L)
        sums = {
            "loss_sum": tf.reduce_sum(loss * weights),
            "weight": tf.reduce_sum(weights),
            "input_tokens": tf.reduce_sum(real),
        }
        if self.num_classes > 1 and not training:
            sums["correct_sum"] = tf.reduce_sum(hits(logits, labels) * weights)
        return sums
