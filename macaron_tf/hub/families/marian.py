"""MarianMT and Pegasus: sinusoidal positions, and a decoder that starts with padding."""

import dataclasses
from typing import Any

from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.families.bart import BART, POST, SETTINGS, check_equal_sizes, equal_sizes
from macaron_tf.models.config import EncoderDecoderConfig


def _marian_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Computes the MarianMT settings that `Family.settings` does not cover."""
    return {**equal_sizes(config), "static_position_embeddings": True, "scale_embedding": True}


def _marian_settings(config: ForeignConfig) -> dict[str, Any]:
    # MarianConfig's default is False, but all MarianMT models scale their embeddings.
    scale = {"scale_embedding": config.get("scale_embedding", False)}
    ForeignConfig(scale, config.where).require({"scale_embedding": True})
    return check_equal_sizes(config)


MARIAN = dataclasses.replace(
    BART,
    model_type="marian",
    name="MarianMT",
    catalog="transformer_base",
    objective=None,
    class_name="MarianMTModel",
    read_tokenizer=None,
    starts=False,
    starts_with_padding=True,
    appends_padding=True,
    # The positions are sinusoidal, but have a limit.
    settings={**SETTINGS, "max_length": ("max_position_embeddings", 1024)},
    fixed_settings={**POST, "position_layout": "concatenated"},
    derive_settings=_marian_settings,
    derive_fields=_marian_fields,
    required_fields={
        **BART.required_fields,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    },
)
# Pegasus is MarianMT with pre-norm.
PEGASUS = dataclasses.replace(
    MARIAN,
    model_type="pegasus",
    name="Pegasus",
    class_name="PegasusForConditionalGeneration",
    appends_padding=False,
    saves_positions=True,
    fixed_settings={**MARIAN.fixed_settings, "norm": "pre"},
    required_fields={
        **MARIAN.required_fields,
        "normalize_before": True,
        "add_final_layer_norm": True,
    },
)
