"""OpenAI's GPT and GPT-2."""

import dataclasses

from macaron_tf.hub.arrays import transformer_layer
from macaron_tf.hub.config import ACTIVATIONS, required, sizes
from macaron_tf.hub.heads import text_heads
from macaron_tf.hub.language_models import CAUSAL, SCORE, LanguageFamily
from macaron_tf.models.tasks import CausalClassifier

_LAYERS = transformer_layer(
    "h.{}.", ["attn.c_attn", "attn.c_proj"], "ln_1", ["mlp.c_fc", "mlp.c_proj"], "ln_2"
)
# In GPT, "gelu" means the tanh approximation.
_GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
GPT2 = LanguageFamily(
    model_type="gpt2",
    name="GPT-2",
    catalog="gpt2_base",
    language_class="LMHeadModel",
    class_prefix="GPT2",
    tokens=("wte.weight",),
    table={"embeddings/positions": "wpe", "stack/final_norm": "ln_f", **_LAYERS},
    settings={
        **sizes(768, 12, 12, fields="n_embd n_head n_layer"),
        "max_length": ("n_positions", 1024),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "epsilon": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation_function", "gelu_new", ACTIVATIONS),
    },
    fixed_settings={**CAUSAL, "norm": "pre", "scaled_outputs": True},
    derive_settings=lambda config: {
        "feed_forward_dim": config.get("n_inner") or 4 * config.number("n_embd", 768)
    },
    derive_fields=lambda config: {"n_inner": config.feed_forward_dim},
    required_fields=required(
        "scale_attn_weights tie_word_embeddings",
        "scale_attn_by_inverse_layer_idx add_cross_attention",
    ),
    prefix="transformer.",
    # The kernel of Conv1D is (inputs, outputs), with queries, keys and values concatenated.
    transpose_kernels=False,
    output_kernel="lm_head.weight",
    body_prefixes=("h.",),
    # Some versions also save two buffers: the causal mask and the score of masked positions.
    ignored_suffixes=(".attn.bias", ".attn.masked_bias"),
    tasks=text_heads({"head/dense/kernel": SCORE}, (CausalClassifier,)),
)
GPT = dataclasses.replace(
    GPT2,
    model_type="openai-gpt",
    name="GPT",
    class_prefix="OpenAIGPT",
    tokens=("tokens_embed.weight",),
    table={"embeddings/positions": "positions_embed", **_LAYERS},
    settings={**GPT2.settings, "activation": ("afn", "gelu", _GPT_ACTIVATIONS)},
    fixed_settings={**CAUSAL, "norm": "post"},
    derive_fields=lambda config: {},  # the feed-forward layer is always four times as wide
)
