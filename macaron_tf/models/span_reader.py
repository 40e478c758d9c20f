"""An encoder that points at an answer in a text."""

import keras
from keras import ops

from macaron_tf.layers.heads import SpanHead
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.special_ids import PAD


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderSpanReader(ConfiguredModel):
    """An encoder and, over each position, its scores as the start and the end of the answer.

    An answer begins and ends in the context; [CLS], position 0, stands for "there is none". All
    other positions score -1e9: the question's, separators and padding.

    Args:
        config: of the encoder.

    Call arguments: a dict of `token_ids (B, L)` and `segment_ids (B, L)`, 1 in `context [SEP]`.
    Returns float32 logits `(B, 2, L)`: start at index 0, end at 1.

    References: Devlin et al. 2018 (BERT), section 4.2 and figure 4 (c).
    """

    # The sequence is not made one vector: nothing to take over from a pre-trained pooler.
    pooler = None

    def __init__(self, config: EncoderConfig, name: str = "encoder_span_reader", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.encoder = Encoder(config, dtype=policy)
        self.head = SpanHead(1, config.initializer_range, dtype=policy, name="head")

    def build(self, input_shape=None):
        self.encoder.build()
        self.head.build((None, None, self.config.hidden_dim))
        self.built = True

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs, training=training)  # (B, L, D)
        allowed = answer_mask(inputs["token_ids"], inputs["segment_ids"])  # (B, L)
        return self.head(hidden, attention_mask=allowed)[:, 0]  # (B, 1, 2, L) -> (B, 2, L)

    def compute_output_shape(self, input_shape):
        batch, length = input_shape["token_ids"]
        return (batch, 2, length)


def answer_mask(token_ids, segment_ids):
    """Where an answer may begin and end: at [CLS] and in the context, before its [SEP].

    Args:
        token_ids, segment_ids: (B, L).

    Returns:
        (B, L) bool.
    """
    real = ops.not_equal(token_ids, PAD)  # (B, L)
    followed = ops.pad(real[:, 1:], ((0, 0), (0, 1)))  # (B, L): false at a row's last id
    context = ops.logical_and(ops.equal(segment_ids, 1), followed)
    first = ops.equal(ops.arange(ops.shape(token_ids)[1]), 0)  # (L,)
    return ops.logical_or(context, first)
