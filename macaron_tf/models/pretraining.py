"""An encoder with the heads that it is pre-trained with."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from macaron_tf.layers.heads import ClassificationHead, MaskedLanguageHead, Pooler
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig


@keras.saving.register_keras_serializable(package="macaron_tf")
class PretrainingEncoder(keras.Model):
    """An encoder that predicts masked tokens and, if asked, whether two segments follow each other.

    Args:
        config: of the encoder.
        next_sentence: add the pooler and the head of two classes: 0 = the second segment follows
            the first, 1 = it is from elsewhere.
        head_options: `activation` and `epsilon` of the masked language head, where they are not
            the encoder's.

    Call arguments: a dict of `token_ids (B, L)`, optionally `segment_ids (B, L)` and
    `masked_positions (B, P)`. Returns a dict: `masked_language`, logits `(B, P, V)` at those
    positions (`(B, L, V)` at all without them), and `next_sentence (B, 2)` if asked.

    References: Devlin et al. 2018 (BERT), section 3.1.
    """

    def __init__(
        self,
        config: EncoderConfig,
        next_sentence: bool = False,
        head_options: Mapping[str, Any] | None = None,
        name: str = "pretraining_encoder",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.config = config
        self.has_next_sentence = next_sentence
        self.head_options = dict(head_options or {})
        policy = self.dtype_policy
        self.encoder = Encoder(config, dtype=policy)
        self.masked_language = MaskedLanguageHead(
            config.vocab_size,
            **{"activation": config.activation, "epsilon": config.epsilon, **self.head_options},
            initializer_range=config.initializer_range,
            dtype=policy,
            name="masked_language",
        )
        self.pooler = self.next_sentence = None
        if next_sentence:
            self.pooler = Pooler(config.initializer_range, dtype=policy, name="pooler")
            self.next_sentence = ClassificationHead(
                2, initializer_range=config.initializer_range, dtype=policy, name="next_sentence"
            )

    def build(self, input_shape=None):
        width = self.config.hidden_dim
        self.encoder.build()
        self.masked_language.build((None, width), (self.config.vocab_size, width))
        if self.next_sentence:
            self.pooler.build((None, None, width))
            self.next_sentence.build((None, width))
        self.built = True

    def call(self, inputs, training=None):
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)
        at = hidden
        if "masked_positions" in inputs:
            # (B, L, D) at (B, P, 1) -> (B, P, D)
            at = ops.take_along_axis(hidden, inputs["masked_positions"][..., None], axis=1)
        outputs = {"masked_language": self.masked_logits(at)}
        if self.next_sentence:
            outputs["next_sentence"] = self.next_sentence_logits(hidden, training=training)
        return outputs

    def hidden_states(self, inputs, training=None):
        """The encoder's output `(B, L, D)`."""
        return self.encoder(inputs, training=training)

    def masked_logits(self, hidden):
        """Scores of every token of the vocabulary: `(..., D) -> (..., V)`."""
        table = ops.convert_to_tensor(self.encoder.embeddings.tokens.table)
        return self.masked_language(hidden, table)

    def next_sentence_logits(self, hidden, training=None):
        """Scores of "follows" and "from elsewhere": `(B, L, D) -> (B, 2)`.

        Raises:
            ValueError: the model has no such head.
        """
        if not self.next_sentence:
            raise ValueError("the model was made without next_sentence=True")
        return self.next_sentence(self.pooler(hidden), training=training)

    def compute_output_shape(self, input_shape):
        asked = input_shape.get("masked_positions", input_shape["token_ids"])
        shapes = {"masked_language": (*asked, self.config.vocab_size)}
        if self.next_sentence:
            shapes["next_sentence"] = (asked[0], 2)
        return shapes

    def get_config(self):
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
            "next_sentence": self.has_next_sentence,
            "head_options": self.head_options,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(EncoderConfig(**config.pop("config")), **config)
