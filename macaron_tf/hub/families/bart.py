"""BART, whose encoder and decoder have learned positions."""

import functools
from typing import Any

from macaron_tf.hub.arrays import Raw, Table, transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, ForeignConfig
from macaron_tf.hub.encoder_decoders import STACKS, SequenceFamily
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.models.config import EncoderDecoderConfig


def equal_sizes(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns BART's fields for the sizes of the decoder, which equal those of the encoder."""
    heads, width = config.num_heads, config.feed_forward_dim
    return {"decoder_attention_heads": heads, "decoder_ffn_dim": width}


def check_equal_sizes(config: ForeignConfig) -> dict[str, Any]:
    """Raises a UserError if the encoder and the decoder have different sizes."""
    for encoder_field, decoder_field in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
        ("vocab_size", "decoder_vocab_size"),
    ):
        expected = config.get(encoder_field)
        actual = config.get(decoder_field, expected)
        if actual != expected:
            found = f"{encoder_field}={expected!r} and {decoder_field}={actual!r}"
            raise config.refusal(found, "equal values")
    return {}


def _bart_table() -> Table:
    """Builds the mapping of weight names for BART, MarianMT and Pegasus.

    Only BART uses the entries for learned positions and for the embedding norm.
    """
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


# Settings of BART, MarianMT and Pegasus.
SETTINGS = {
    "hidden_dim": ("d_model", None),
    "feed_forward_dim": ("encoder_ffn_dim", None),
    "num_heads": ("encoder_attention_heads", None),
    "num_encoder_layers": ("encoder_layers", None),
    "num_decoder_layers": ("decoder_layers", None),
    "activation": ("activation_function", None, ACTIVATIONS),
}
POST = {"block": "transformer", "norm": "post", "epsilon": 1e-5}
BART = SequenceFamily(
    model_type="bart",
    name="BART",
    catalog="bart_base",
    objective="denoising",
    class_name="BartForConditionalGeneration",
    read_tokenizer=functools.partial(read_vocabulary, role="sequence"),
    starts=True,
    # `save_pretrained` saves a tied array under only one of these names.
    tokens=("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    table=_bart_table(),
    settings={
        **SETTINGS,
        "max_length": ("max_position_embeddings", None),
        "embedding_scale": ("scale_embedding", False),
    },
    fixed_settings={
        **POST,
        "positions": "learned",
        "embedding_norm": True,
        "position_offset": 2,  # unused rows at the beginning of the tables
    },
    derive_settings=check_equal_sizes,
    derive_fields=equal_sizes,
    required_fields={
        "normalize_before": False,
        "add_final_layer_norm": False,
        "normalize_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    },
    without_effect=(
        *("dropout", "attention_dropout", "activation_dropout", "classif_dropout", "init_std"),
        *("encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers", "extra_pos_embeddings"),
        *("force_bos_token_to_be_generated", "save_step"),
    ),
    prefix="model.",
    body_prefixes=("encoder.", "decoder."),
    # Copies of the token embeddings, MarianMT's sinusoidal positions, and a bias that may be zero.
    ignored_suffixes=("tokens.weight", "lm_head.weight", "positions.weight", "final_logits_bias"),
)
