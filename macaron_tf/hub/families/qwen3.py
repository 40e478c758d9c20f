"""Qwen 3, a Llama with an RMSNorm of the queries and keys of each head."""

import dataclasses
from typing import Any

from macaron_tf.hub.config import ForeignConfig, usual_sizes
from macaron_tf.hub.families.llama import LLAMA, QUERY_KEY_NORMS, llama_settings


def _qwen_settings(config: ForeignConfig) -> dict[str, Any]:
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
    table={**LLAMA.table, **QUERY_KEY_NORMS},
    settings={**LLAMA.settings, **usual_sizes(4096, 22_016, 32, 32, 32_768)},
    fixed_settings={**LLAMA.fixed_settings, "qk_norm": "head"},
    derive_settings=_qwen_settings,
    required_fields={"attention_bias": False, "use_sliding_window": False},
    without_effect=(*LLAMA.without_effect, "sliding_window", "max_window_layers"),
)
