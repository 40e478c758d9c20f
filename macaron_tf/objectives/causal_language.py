"""What a causal language model learns: the next token at every position."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.objectives.masking_config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.pretraining import PretrainingObjective, next_token_sums
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
