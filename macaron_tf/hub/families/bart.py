"""BART, whose encoder and decoder have learned positions; MarianMT, whose are sinusoidal."""

import dataclasses
from typing import Any

from macaron_tf.hub.arrays import Raw, Table, transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, ForeignConfig, required
from macaron_tf.hub.encoder_decoders import STACKS, SequenceFamily
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.models.config import EncoderDecoderConfig


def _bart_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns the fields for the sizes of the decoder, which equal those of the encoder."""
    heads, width = config.num_heads, config.feed_forward_dim
    return {"decoder_attention_heads": heads, "decoder_ffn_dim": width}


def _bart_settings(config: ForeignConfig) -> dict[str, Any]:
    """Refuses other sizes of the decoder than of the encoder."""
    heads, width = map(config.get, ("encoder_attention_heads", "encoder_ffn_dim"))
    sizes = {"decoder_attention_heads": heads, "decoder_ffn_dim": width}
    config.require({**sizes, "decoder_vocab_size": config.get("vocab_size")})
    return {}


def _bart_table() -> Table:
    """Builds the mapping of weight names for BART and MarianMT."""
    table, parts = {}, ("q_proj", "k_proj", "v_proj", "out_proj")
    for stack, embeddings in STACKS.items():
        positions = f"{stack}.embed_positions.weight"
        table |= {
            f"{embeddings}/positions/table": Raw(positions),
            f"{embeddings}/norm": f"{stack}.layernorm_embedding",
            **transformer_layer(
                f"{stack}.layers.{{}}.",
                [f"self_attn.{part}" for part in parts],
                "self_attn_layer_norm",
                ["fc1", "fc2"],
                "final_layer_norm",
                [f"encoder_attn.{part}" for part in parts],
                "encoder_attn_layer_norm",
                path_prefix=f"{stack}/block_{{}}",
            ),
            f"{stack}/final_norm": f"{stack}.layer_norm",
        }
    return table


_POST = {"block": "transformer", "norm": "post", "epsilon": 1e-5}
BART = SequenceFamily(
    model_type="bart",
    name="BART",
    catalog="bart_base",
    objective="denoising",
    class_name="BartForConditionalGeneration",
    tokenizer=lambda folder: read_vocabulary(folder.path, role="sequence"),
    starts=True,
    # `save_pretrained` saves a tied array under only one of these names.
    tokens=("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    table=_bart_table(),
    settings={
        "hidden_dim": ("d_model", None),
        "feed_forward_dim": ("encoder_ffn_dim", None),
        "num_heads": ("encoder_attention_heads", None),
        "num_encoder_layers": ("encoder_layers", None),
        "num_decoder_layers": ("decoder_layers", None),
        "activation": ("activation_function", None, ACTIVATIONS),
        "max_length": ("max_position_embeddings", None),
        "embedding_scale": ("scale_embedding", False),
    },
    fixed_settings={
        **_POST,
        "positions": "learned",
        "embedding_norm": True,
        "position_offset": 2,  # unused rows at the beginning of the tables
    },
    derive_settings=_bart_settings,
    derive_fields=_bart_fields,
    required_fields=required(
        "normalize_embedding share_encoder_decoder_embeddings tie_word_embeddings",
        "normalize_before add_final_layer_norm",
    ),
    prefix="model.",
    body_prefixes=("encoder.", "decoder."),
    # Copies of the token embeddings, MarianMT's sinusoidal positions, and a bias that may be zero.
    ignored_suffixes=("tokens.weight", "lm_head.weight", "positions.weight", "final_logits_bias"),
)
MARIAN = dataclasses.replace(
    BART,
    model_type="marian",
    name="MarianMT",
    catalog="transformer_base",
    objective=None,
    class_name="MarianMTModel",
    tokenizer=None,
    starts=False,
    # The positions are sinusoidal, but have a limit.
    settings={**BART.settings, "max_length": ("max_position_embeddings", 1024)},
    fixed_settings={**_POST, "position_layout": "concatenated"},
    required_fields={
        **BART.required_fields,
        **required("static_position_embeddings", "normalize_embedding"),
    },
)
