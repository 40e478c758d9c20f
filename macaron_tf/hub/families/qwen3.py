"""Qwen 3: Llama with an RMSNorm of the queries and keys of each head."""

import dataclasses
from typing import Any

from macaron_tf.hub.arrays import Raw
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.families.llama import LLAMA, llama_settings

# The norms of queries and keys, also in OLMo 2.
NORMS = {
    f"attention/{name}_scale": Raw(f"layers.{{}}.self_attn.{name[0]}_norm.weight")
    for name in ("query", "key")
}


def _settings(config: ForeignConfig) -> dict[str, Any]:
    if "sliding_attention" in (config.get("layer_types") or ()):
        config.require({"layer_types": None})
    defaults = {
        "num_kv_heads": config.get("num_key_value_heads", 32),
        "head_dim": config.get("head_dim", 128),
    }
    return {**llama_settings(config), **defaults}


QWEN3 = dataclasses.replace(
    LLAMA,
    model_type="qwen3",
    name="Qwen 3",
    class_prefix="Qwen3",
    table={**LLAMA.table, **NORMS},
    settings={
        **LLAMA.settings,
        "feed_forward_dim": ("intermediate_size", 22_016),
        "max_length": ("max_position_embeddings", 32_768),
    },
    fixed_settings={**LLAMA.fixed_settings, "qk_norm": "head"},
    derive_settings=_settings,
    required_fields={"attention_bias": False, "use_sliding_window": False},
    without_effect=(*LLAMA.without_effect, "sliding_window", "max_window_layers"),
)
