"""OLMo 2, a Llama with norms of all queries, of all keys and of each sub-layer's output."""

import dataclasses

from macaron_tf.hub.families.llama import LLAMA, QUERY_KEY_NORMS, llama_layers

OLMO2 = dataclasses.replace(
    LLAMA,
    model_type="olmo2",
    name="OLMo 2",
    class_prefix="Olmo2",
    table={
        "stack/final_norm": "norm",
        **llama_layers("post_attention_layernorm", "post_feedforward_layernorm"),
        **QUERY_KEY_NORMS,
    },
    settings={**LLAMA.settings, "epsilon": ("rms_norm_eps", 1e-5)},
    fixed_settings={**LLAMA.fixed_settings, "norm": "output", "qk_norm": "heads"},
    required_fields={"attention_bias": False},
)
