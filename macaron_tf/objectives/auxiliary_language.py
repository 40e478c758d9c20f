"""What a language model learns when it is fine-tuned: the answers, and its text besides."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.classification import ClassificationObjective
from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.special_ids import PAD


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
