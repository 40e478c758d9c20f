"""What a tagger learns: the tag of each word, at its first piece."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.checks import check_count
from macaron_tf.objectives.cross_entropy import hits
from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.special_ids import PAD


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
