"""An encoder-decoder whose parts begin with an encoder's weights."""

import dataclasses
from collections.abc import Sequence

from keras import ops

from macaron_tf.models.config import BLOCKS, EncoderDecoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.layer_choices import SHAPE

PARTS = ("embeddings", "encoder", "decoder")


def config_from_encoder(
    config: EncoderConfig, base: EncoderDecoderConfig, parts: Sequence[str]
) -> EncoderDecoderConfig:
    """The configuration of an encoder-decoder that an encoder's weights fit in.

    Args:
        config: the encoder's.
        base: gives the dropouts, and the depth of what is not in `parts`.
        parts: of `PARTS`: what takes the encoder's weights; the embeddings always do.

    Raises:
        ValueError: no encoder-decoder has such layers; the message names the field.
    """
    for field, plain in (("embedding_dim", config.hidden_dim), ("sharing", "none")):
        value = getattr(config, field)
        if value not in (None, plain):
            raise ValueError(f"{field}={value!r}: an encoder-decoder has {field}={plain!r} only")
    others = set(config.blocks) - set(BLOCKS)
    if others or config.positions == "transformer_xl" or not config.affine:
        found = f"block={min(others)!r}" if others else f"positions={config.positions!r}"
        found = found if config.affine else "affine=False"
        raise ValueError(
            f"{found}: an encoder-decoder has blocks of {', '.join(BLOCKS)}, with LayerNorms that "
            "scale, and no attention over segments"
        )
    depths = {
        f"num_{part}_layers": config.num_layers for part in ("encoder", "decoder") if part in parts
    }
    return dataclasses.replace(
        base,
        vocab_size=config.vocab_size,
        **config.options(*SHAPE),
        **depths,
        embedding_scale=False,
        tied=True,
        scaled_logits=False,
        initializer_range=config.initializer_range,
        language_embeddings=bool(config.num_languages or config.num_segments),
        num_source_layers=0,
    )


def copy_embeddings(network: EncoderDecoder, encoder: Encoder, languages: Sequence[int]) -> None:
    """Gives an encoder-decoder the embeddings of an encoder, on both sides.

    Args:
        network: built, see `config_from_encoder`.
        encoder: built.
        languages: of the source and the target, their rows in the encoder's language embeddings.
    """
    own = encoder.embeddings
    network.embedding.table.assign(own.tokens.table)
    sides = (network.source_embeddings, network.target_embeddings)
    for side, language in zip(sides, languages, strict=True):
        for layer, theirs in (
            (side.position_layer, own.position_layer),
            (side.layer_norm, own.layer_norm),
        ):
            if layer:
                layer.set_weights(theirs.get_weights())
        if side.languages is not None:
            # What every token of the side has added to it: its language, and the first segment.
            rows = ((own.languages, language), (own.segments, 0))
            found = [table[row] for table, row in rows if table is not None]
            side.languages.assign(ops.sum(ops.stack(found), axis=0, keepdims=True))  # (1, D)
