"""What a language model with memory learns: every token of a text, segment by segment."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.objectives.masking_config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.pretraining import PretrainingObjective, next_token_sums
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class SegmentLanguageObjective(PretrainingObjective):
    """Cross-entropy of each token given those before it, in its segment and in the memory.

    Attributes:
        skip_padding: as in `MaskedLanguageObjective`.

    Call arguments: `network`, a `SegmentLanguageModel` with `memories`, of which it uses the one
    for training or the one for evaluation; `batch` of this objective's `dataset`, whose rows go
    on from batch to batch; `training`. Returns float32 sums over the batch as
    `CausalLanguageObjective`.

    References: Dai et al. 2019 (Transformer-XL), section 3.2.
    """

    skip_padding: bool = True
    metric_names = ("loss", "nll", "perplexity", "accuracy")

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: MaskingVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Segments of `stream_dataset`'s rows: `labels (B, L - 2)`, and the token before each.

        Rows lose their [CLS] and their last column, a [SEP] in all but the last row of a shard.
        The [SEP]s between documents stay, and a text begins behind a [CLS].
        """

        def segment(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            labels, previous = batch["token_ids"][:, 1:-1], batch["previous_ids"]
            # The last row of a shard may end in padding, behind a [SEP].
            real = tf.reduce_sum(tf.cast(previous != PAD, tf.int32), axis=-1)  # (B,)
            last = tf.clip_by_value(real - 1, 0, previous.shape[1] - 2)
            before = tf.gather(previous, last, batch_dims=1)
            before = tf.where(batch["starts"], batch["token_ids"][:, 0], before)
            token_ids = tf.concat([before[:, None], labels[:, :-1]], axis=1)
            return {"token_ids": token_ids, "labels": labels, "starts": batch["starts"]}

        return rows.map(segment, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        hidden, past = network.with_past(encoder_inputs(batch), past, training=training)
        memory.write(past)
        real = batch["token_ids"] != PAD
        return next_token_sums(network, hidden, batch["labels"], real, self.skip_padding, training)
