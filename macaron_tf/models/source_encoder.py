"""The encoder that reads a source of another vocabulary in front of a pre-trained model."""

import keras

from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.layer_choices import DROPOUTS, SHAPE


def source_encoder_config(config: EncoderDecoderConfig) -> EncoderConfig:
    """The configuration of an encoder-decoder's source encoder: its layers are the model's.

    Args:
        config: with `num_source_layers`.
    """
    return EncoderConfig(
        vocab_size=config.source_vocab_size or config.vocab_size,
        num_layers=config.num_source_layers,
        num_segments=0,
        initializer_range=config.initializer_range or config.hidden_dim**-0.5,
        **config.options(*SHAPE, *DROPOUTS),
    )


def first_stage_variables(network: keras.Model) -> list[keras.Variable]:
    """What is trained first where a new encoder is put in front of a pre-trained model.

    The new encoder, the pre-trained positions of both sides, and the projection to queries, keys
    and values in the encoder's first layer, with its bias.

    Args:
        network: a built `EncoderDecoder` with a `source_encoder`.

    References: Lewis et al. 2020 (BART), section 3.4.
    """
    variables = list(network.source_encoder.trainable_variables)
    for side in (network.source_embeddings, network.target_embeddings):
        if side.position_layer:
            variables += side.position_layer.trainable_variables
    first_layer = network.encoder.blocks[0].trainable_variables
    return variables + [v for v in first_layer if "/query_key_value/" in v.path]
