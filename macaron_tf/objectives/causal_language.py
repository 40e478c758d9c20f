"""What a causal language model learns: the next token at every position."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import PretrainingObjective, encoder_inputs, next_token_sums
from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.tasks import ClassificationObjective
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class CausalLanguageObjective(PretrainingObjective):
    """Cross-entropy of each real token given those before it in its row; the first is given.

    Attributes:
        skip_padding: as in `MaskedLanguageObjective`.

    Call arguments: `network`, a `LanguageModel`; `batch` of `encoder_inputs`; `training`. Returns
    float32 sums over the batch: `loss_sum` and `nll_sum` (nats), `weight` (the number of tokens
    predicted), `input_tokens` and, outside training, `correct_sum`.

    Raises:
        ValueError: (when called) the network is not causal: it would see what it is to predict.

    References: Radford et al. 2018 (GPT), eq. 1; Conneau and Lample 2019 (XLM), section 3.2.
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
        """The rows as they are: nothing is masked."""
        return rows

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        if not network.config.causal:
            raise ValueError("causal language modelling needs a network with causal=True")
        token_ids = batch["token_ids"]
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        real = token_ids != PAD
        return next_token_sums(
            network, hidden[:, :-1], token_ids[:, 1:], real, self.skip_padding, training
        )


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


@dataclass(frozen=True)
class AuxiliaryLanguageObjective(ClassificationObjective):
    """`L3 = L2 + lambda L1`: the loss of the answer and that of the language model.

    An example's L1 is the mean over its rows, each the mean cross-entropy of the row's tokens given
    those before them, as in the paper's released code (its text has sums). The first token is
    given, and the last, which the answer is read from, is no text.

    Attributes:
        num_classes: as of `ClassificationObjective`; of a `CausalChooser` the choices, R.
        language_weight: lambda; 0 leaves L1 out.

    Call arguments: as there, but `network` is a `CausalReader`. Returns the same sums and, with
    L1, its `language_loss_sum` (nats) over the examples, before lambda.

    Raises:
        ValueError: as there; the weight is below 0.

    References: Radford et al. 2018 (GPT), eq. 5.
    """

    language_weight: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not self.language_weight >= 0:
            raise ValueError(f"language_weight={self.language_weight!r} must be 0 or more")

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        logits, token_ids, hidden = network.read(encoder_inputs(batch), training=training)
        sums = self.sums(logits, batch, training)
        if self.language_weight:
            nll = _language_loss(network.language_model, token_ids, hidden)  # (B,)
            language = tf.reduce_sum(nll * batch["weight"])
            sums["loss_sum"] += self.language_weight * language
            sums["language_loss_sum"] = language
        return sums


def _language_loss(language_model, token_ids: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    """L1 of each example: ids `(B, R, L)` and hidden states `(B, R, L, D)` to `(B,)` float32."""
    labels = token_ids[:, :, 1:]  # (B, R, L - 1)
    # (B, R, L - 1, D) -> (N, D) and (B, R, L - 1) -> (N,), N = B R (L - 1)
    rows = tf.reshape(hidden[:, :, :-1], (-1, hidden.shape[-1]))
    logits = tf.cast(language_model.logits(rows), tf.float32)  # (N, V)
    nll = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, (-1,)), logits)
    nll = tf.reshape(nll, tf.shape(labels))  # (N,) -> (B, R, L - 1)
    # Not the last token of a row: behind the others there is one more.
    used = tf.pad(tf.cast(labels[:, :, 1:] != PAD, tf.float32), [[0, 0], [0, 0], [0, 1]])
    count = tf.maximum(tf.reduce_sum(used, axis=2), 1.0)  # (B, R)
    return tf.reduce_mean(tf.reduce_sum(nll * used, axis=2) / count, axis=1)
