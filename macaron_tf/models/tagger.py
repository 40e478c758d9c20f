"""An encoder that tags each position."""

import keras

from macaron_tf.layers.heads import ClassificationHead
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderTagger(ConfiguredModel):
    """An encoder and a linear layer over each of its positions.

    Args:
        config: of the encoder.
        num_tags: C.
        head_dropout: on the positions' vectors, 0 to 1.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, L, C)`.

    References: Devlin et al. 2018 (BERT), section 5.3 and figure 4 (d).
    """

    # The sequence is not made one vector: nothing to take over from a pre-trained pooler.
    pooler = None

    def __init__(
        self,
        config: EncoderConfig,
        num_tags: int,
        head_dropout: float = 0.1,
        name: str = "encoder_tagger",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.config = config
        self.num_tags = num_tags
        self.head_dropout = head_dropout
        policy = self.dtype_policy
        self.encoder = Encoder(config, dtype=policy)
        self.head = ClassificationHead(
            num_tags,
            dropout=head_dropout,
            initializer_range=config.initializer_range,
            dtype=policy,
            name="head",
        )

    def build(self, input_shape=None):
        self.encoder.build()
        self.head.build((None, None, self.config.hidden_dim))
        self.built = True

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        return self.head(hidden, training=training)  # (B, L, C)

    def compute_output_shape(self, input_shape):
        return (*input_shape["token_ids"], self.num_tags)

    def get_config(self):
        return {
            **super().get_config(),
            "num_tags": self.num_tags,
            "head_dropout": self.head_dropout,
        }
