"""The BERT-style encoder, with any block and any scheme of positions."""

import dataclasses

import keras
from keras import ops

from macaron_tf.layers.encoder_embeddings import EncoderEmbeddings
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.stack import Stack
from macaron_tf.special_ids import PAD


@keras.saving.register_keras_serializable(package="macaron_tf")
class Encoder(keras.Model):
    """Embeddings and a stack of blocks: `(B, L)` ids to `(B, L, D)`.

    Args:
        config: shapes and parts.

    Call arguments: a dict of `token_ids (B, L)` int, 0 being padding, which no real position sees,
    and optionally `segment_ids (B, L)` int. Returns `(B, L, D)`.

    Example:
        encoder = Encoder(EncoderConfig(1000, 128, 384, 2, 2, block="macaron"))
        hidden = encoder({"token_ids": token_ids})

    References: Devlin et al. 2018 (BERT); with Macaron blocks, Lu et al. 2019; with recurrences
    for feed-forwards and T5's bias, Lei et al. 2022.
    """

    def __init__(self, config: EncoderConfig, name: str = "encoder", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.embeddings = EncoderEmbeddings(
            config.vocab_size,
            config.hidden_dim,
            positions=config.positions,
            max_length=config.max_length,
            num_segments=config.num_segments,
            dropout=config.dropout,
            epsilon=config.epsilon,
            affine=config.affine,
            initializer_range=config.initializer_range,
            dtype=policy,
            name="embeddings",
        )
        options = {
            name: getattr(config, name)
            for name in (
                "num_heads",
                "feed_forward_dim",
                "dropout",
                "attention_dropout",
                "activation_dropout",
                "activation",
                "norm",
                "epsilon",
                "affine",
            )
        }
        options["kernel_initializer"] = keras.initializers.TruncatedNormal(
            stddev=config.initializer_range
        )
        layer_options = [{}]
        if config.block == "swish_rnn":
            options["rnn_gate"] = config.rnn_gate
            layer_options = [{"rnn_step_size": k} for k in config.rnn_step_sizes]
        self.stack = Stack(
            config.num_layers,
            config.block,
            options,
            layer_options,
            relative_bias=config.relative_bias,
            dtype=policy,
            name="stack",
        )

    def build(self, input_shape=None):
        self.embeddings.build()
        self.stack.build((None, None, self.config.hidden_dim))
        self.built = True

    def call(self, inputs, training=None):
        token_ids = inputs["token_ids"]
        x = self.embeddings(token_ids, inputs.get("segment_ids"), training=training)
        return self.stack(x, mask=ops.not_equal(token_ids, PAD), training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape["token_ids"], self.config.hidden_dim)

    def get_config(self):
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(EncoderConfig(**config.pop("config")), **config)
