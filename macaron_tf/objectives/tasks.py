"""What a classifier learns: one label, or one number, for each row."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.checks import check_count
from macaron_tf.objectives.base import encoder_inputs, hits
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


@dataclass(frozen=True)
class TaggingObjective:
    """Cross-entropy of the words' tags; a batch's loss is the mean over its words.

    Attributes:
        num_tags: C.

    Call arguments: `network`, an `EncoderTagger`; `batch` of `token_ids (B, L)`, optionally
    `segment_ids (B, L)`, `label (B, L)` int32 (a tag's number plus 1, from 1 to C, at the first
    piece of a word; 0 elsewhere) and `weight (B,)` float32, 0 in rows of padding, whose labels may
    be anything; `training`. Returns float32 sums over the batch: `loss_sum`, `weight` (the words),
    `input_tokens`, and, outside training, `correct_sum`.

    Raises:
        ValueError: num_tags is below 1; (when called) the network has another number.

    References: Devlin et al. 2018 (BERT), section 5.3.
    """

    num_tags: int

    def __post_init__(self):
        check_count("num_tags", self.num_tags)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        logits = network(encoder_inputs(batch), training=training)  # (B, L, C)
        if logits.shape[-1] != self.num_tags:
            raise ValueError(f"num_tags={self.num_tags}, but the network scores {logits.shape[-1]}")
        logits = tf.cast(logits, tf.float32)
        words = (batch["label"] > 0) & (batch["weight"][:, None] > 0)  # (B, L)
        # A label out of range gives a loss of NaN, which stays NaN when multiplied by 0.
        tags = tf.where(words, batch["label"] - 1, tf.zeros_like(batch["label"]))  # (B, L)
        weights = tf.cast(words, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tags, logits)  # (B, L)
        real = tf.cast(batch["token_ids"] != PAD, tf.float32)  # (B, L)
        sums = {
            "loss_sum": tf.reduce_sum(losses * weights),
            "weight": tf.reduce_sum(weights),
            "input_tokens": tf.reduce_sum(real),
        }
        if not training:
            sums["correct_sum"] = tf.reduce_sum(hits(logits, tags) * weights)
        return sums
