"""An encoder with a classifier on top."""

import keras
from keras import ops

from macaron_tf.layers.heads import ClassificationHead, Pooler
from macaron_tf.layers.pooling import Pooling
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.special_ids import PAD


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderClassifier(ConfiguredModel):
    """An encoder, its pooled [CLS] position, and a linear layer over it.

    Args:
        config: of the encoder; its `summary` says where [CLS] stands.
        num_classes: C; 1 for regression.
        head_dropout: on the pooled vector, 0 to 1.

    Call arguments: a dict of `token_ids (B, L)` and optionally `segment_ids (B, L)`. Returns
    logits `(B, C)`.

    References: Devlin et al. 2018 (BERT), figure 4 (a) and (b).
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_classes: int,
        head_dropout: float = 0.1,
        name: str = "encoder_classifier",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.config = config
        self.num_classes = num_classes
        self.head_dropout = head_dropout
        policy = self.dtype_policy
        self.encoder = Encoder(config, dtype=policy)
        self.last = None
        if config.summary == "last":
            self.last = Pooling("last", dtype=policy, name="last")
        self.pooler = Pooler(config.initializer_range, dtype=policy, name="pooler")
        self.head = ClassificationHead(
            num_classes,
            dropout=head_dropout,
            initializer_range=config.initializer_range,
            dtype=policy,
            name="head",
        )

    def build(self, input_shape=None):
        width = self.config.hidden_dim
        self.encoder.build()
        if self.last:
            self.last.build((None, None, width))
        self.pooler.build((None, None, width))
        self.head.build((None, width))
        self.built = True

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        if self.last:
            vectors = self.last(hidden, mask=ops.not_equal(inputs["token_ids"], PAD))  # (B, D)
            hidden = vectors[:, None]  # (B, 1, D)
        return self.head(self.pooler(hidden), training=training)  # (B, C)

    def compute_output_shape(self, input_shape):
        return (input_shape["token_ids"][0], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "head_dropout": self.head_dropout,
        }
