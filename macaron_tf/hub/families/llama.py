"""Llama: pre-norm with RMSNorm, RoPE, grouped-query attention and a gated feed-forward layer.

Qwen 3 has a norm of the queries and keys of each head; OLMo 2 of all heads, and of the outputs.
"""

import dataclasses
from typing import Any

from macaron_tf.hub.arrays import Raw, Table, transformer_layer
from macaron_tf.hub.config import (
    ACTIVATIONS,
    ForeignConfig,
    parts_of,
    rotary_fields,
    rotary_settings,
    sizes,
)
from macaron_tf.hub.families.gpt import GPT2
from macaron_tf.hub.language_models import CAUSAL, LanguageFamily
from macaron_tf.models.config import EncoderConfig


def _llama_settings(
    config: ForeignConfig, kv_heads: int | None = None, head_dim: int | None = None
) -> dict[str, Any]:
    """Reads RoPE, whose fields have the names of older or of newer transformers versions."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        **rotary_settings(config, rope, "rope_theta", 10_000.0),
        "num_kv_heads": config.get("num_key_value_heads", kv_heads),
        "head_dim": config.get("head_dim", head_dim),
    }


def _llama_fields(config: EncoderConfig) -> dict[str, Any]:
    """Computes Llama's fields that `Family.settings` lacks (the inverse of `_llama_settings`)."""
    return {
        "rope_theta": config.rotary_base,
        "rope_parameters": rotary_fields(config.rotary_base, config.rotary_scaling),
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.head_dim or config.hidden_dim // config.num_heads,
    }


def llama_layers(norm: str, feed_forward_norm: str) -> Table:
    """Builds the mapping of weight names for the layers, whose two norms have the given names."""
    return transformer_layer(
        "layers.{}.",
        [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")],
        norm,
        [f"mlp.{name}_proj" for name in ("gate", "up", "down")],
        feed_forward_norm,
    )


# The norms of queries and keys in Qwen 3 and OLMo 2.
QUERY_KEY_NORMS = {
    f"attention/{name}_scale": Raw(f"layers.{{}}.self_attn.{name[0]}_norm.weight")
    for name in ("query", "key")
}
LLAMA = LanguageFamily(
    model_type="llama",
    name="Llama",
    catalog="llama_base",
    language_class="ForCausalLM",
    tokens=("embed_tokens.weight",),
    table={
        "stack/final_norm": "norm",
        **llama_layers("input_layernorm", "post_attention_layernorm"),
    },
    settings={
        **sizes(4096, 32, 32, 11_008, 2048),
        "attention_dropout": ("attention_dropout", 0.0),
        "epsilon": ("rms_norm_eps", 1e-6),
        "tied": ("tie_word_embeddings", False),
        "activation": ("hidden_act", "silu", {"silu": "silu", **ACTIVATIONS}),
    },
    fixed_settings={**CAUSAL, **parts_of("llama_base")},
    derive_settings=_llama_settings,
    derive_fields=_llama_fields,
    required_fields={"attention_bias": False, "mlp_bias": False},
    prefix="model.",
    output_kernel="lm_head.weight",
    body_prefixes=("layers.",),
    ignored_suffixes=(".rotary_emb.inv_freq",),  # a buffer that early versions saved
    tasks=GPT2.tasks,
)


def _qwen_settings(config: ForeignConfig) -> dict[str, Any]:
    if "sliding_attention" in (config.get("layer_types") or ()):
        config.require({"layer_types": None})
    return _llama_settings(config, kv_heads=32, head_dim=128)


QWEN3 = dataclasses.replace(
    LLAMA,
    model_type="qwen3",
    name="Qwen 3",
    table={**LLAMA.table, **QUERY_KEY_NORMS},
    settings={**LLAMA.settings, **sizes(4096, 32, 32, 22_016, 32_768)},
    fixed_settings={**LLAMA.fixed_settings, "qk_norm": "head"},
    derive_settings=_qwen_settings,
    required_fields={"attention_bias": False, "use_sliding_window": False},
)
OLMO2 = dataclasses.replace(
    LLAMA,
    model_type="olmo2",
    name="OLMo 2",
    table={
        "stack/final_norm": "norm",
        **llama_layers("post_attention_layernorm", "post_feedforward_layernorm"),
        **QUERY_KEY_NORMS,
    },
    settings={**LLAMA.settings, "epsilon": ("rms_norm_eps", 1e-5)},
    fixed_settings={**LLAMA.fixed_settings, "norm": "output", "qk_norm": "heads"},
    required_fields={"attention_bias": False},
)
