"""What a causal language model learns: the next token at every position."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.objectives.masking_config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.pretraining import PretrainingObjective, token_sums
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
        # (B, L - 1, D) -> (N, D) and (B, L - 1) -> (N,), N = B (L - 1)
        hidden = tf.reshape(hidden[:, :-1], (-1, hidden.shape[-1]))
        labels = tf.reshape(token_ids[:, 1:], (-1,))
        if self.skip_padding:
            used = tf.where(labels != PAD)[:, 0]
            hidden, labels = tf.gather(hidden, used), tf.gather(labels, used)
        return token_sums(
            network.logits(hidden),
            labels,
            tf.cast(labels != PAD, tf.float32),
            real=token_ids != PAD,
            training=training,
        )
