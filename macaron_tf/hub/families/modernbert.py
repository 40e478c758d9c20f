"""ModernBERT: pre-norm, gated, with RoPE and local attention."""

from typing import Any

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import (
    ACTIVATIONS,
    ForeignConfig,
    parts_of,
    required,
    rotary_fields,
    rotary_settings,
    shortest_period,
    sizes,
)
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.families.bert import LINEAR
from macaron_tf.hub.heads import text_heads
from macaron_tf.models.config import EncoderConfig
from macaron_tf.text.byte_pairs import BytePairVocabulary

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _modern_settings(config: ForeignConfig) -> dict[str, Any]:
    """Converts ModernBERT's fields, of older or newer transformers versions, to settings."""
    num_layers = config.number("num_hidden_layers", 22)
    global_every = config.number("global_attn_every_n_layers", 3)
    window = config.number("local_attention", 128)
    defaults = [_LOCAL if index % max(global_every, 1) else _GLOBAL for index in range(num_layers)]
    layer_types = config.get("layer_types") or defaults
    if len(layer_types) != num_layers or not {*layer_types} <= {_LOCAL, _GLOBAL}:
        supported = f"{_LOCAL} or {_GLOBAL} for each of {num_layers} layers"
        raise config.refusal(f"layer_types={layer_types!r:.60}", supported)
    windows = shortest_period([window if name == _LOCAL else 0 for name in layer_types])
    rope = config.get("rope_parameters") or {}
    whole = rotary_settings(config, rope.get(_GLOBAL) or {}, "global_rope_theta", 160_000.0)
    local = rotary_settings(config, rope.get(_LOCAL) or {}, "local_rope_theta", 10_000.0)
    if local["rotary_scaling"] != whole["rotary_scaling"]:
        raise config.refusal(f"different RoPE scaling for {_LOCAL} and {_GLOBAL}", "equal scaling")
    return {
        "attention_windows": windows,
        **whole,
        "local_rotary_base": local["rotary_base"] if any(windows) else None,
    }


def _modern_fields(config: EncoderConfig) -> dict[str, Any]:
    """Computes the fields that `Family.settings` lacks, with their older and newer names."""
    windows = [config.layer(index)[2] for index in range(config.num_layers)]
    first, *others = shortest_period(windows)
    bases = {_GLOBAL: config.rotary_base, _LOCAL: config.local_rotary_base or config.rotary_base}
    return {
        "local_attention": next(filter(None, windows), 128),
        "layer_types": [_LOCAL if window else _GLOBAL for window in windows],
        "rope_parameters": {n: rotary_fields(b, config.rotary_scaling) for n, b in bases.items()},
        # `None` replaces transformers' defaults, which are ids of the released vocabulary.
        **dict.fromkeys(("cls_token_id", "sep_token_id")),
        # Field names of transformers before version 5.
        "global_rope_theta": bases[_GLOBAL],
        "local_rope_theta": bases[_LOCAL],
        **({} if first or not all(others) else {"global_attn_every_n_layers": 1 + len(others)}),
    }


MODERNBERT = EncoderFamily(
    model_type="modernbert",
    name="ModernBERT",
    class_prefix="ModernBert",
    vocabulary_class=BytePairVocabulary,
    prefix="model.",
    body_prefixes=("embeddings.", "layers", "final_norm."),
    tokens=("embeddings.tok_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.norm",
        "stack/final_norm": "final_norm",
        **transformer_layer(
            "layers.{}.", ["attn.Wqkv", "attn.Wo"], "attn_norm", ["mlp.Wi", "mlp.Wo"], "mlp_norm"
        ),
    },
    heads=head_table("head.", "norm"),
    tasks=text_heads(
        {"pooler/dense": "head.dense", "pooler/norm": "head.norm", **LINEAR}, activation="gelu"
    ),
    bias=("decoder.bias",),
    head_options={"activation": "gelu"},
    settings={
        **sizes(768, 12, 22, 1152, 8192),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation_dropout": ("mlp_dropout", 0.0),
        "epsilon": ("norm_eps", 1e-5),
        "activation": ("hidden_activation", "gelu", ACTIVATIONS),
        "summary": ("classifier_pooling", "cls", {"cls": "first", "mean": "mean"}),
    },
    fixed_settings=parts_of("modern_bert_base"),
    derive_settings=_modern_settings,
    derive_fields=_modern_fields,
    required_fields=required(
        "decoder_bias tie_word_embeddings",
        "attention_bias mlp_bias norm_bias classifier_bias",
        classifier_activation="gelu",
        rope_scaling=None,  # the scaling of each type of layer is in `rope_parameters`
    ),
    padding_id=50_283,
)
