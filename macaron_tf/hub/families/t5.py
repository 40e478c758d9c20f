"""T5 and T5 1.1: pre-norm with RMSNorm, shared relative position biases, sentinels."""

from typing import Any

from macaron_tf.hub.arrays import Table, transformer_layer
from macaron_tf.hub.config import ForeignConfig, parts_of
from macaron_tf.hub.encoder_decoders import STACKS, SequenceFamily
from macaron_tf.hub.tokenizers.reading import read_vocabulary
from macaron_tf.models.config import EncoderDecoderConfig

_FEED_FORWARDS = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}


def _t5_settings(config: ForeignConfig) -> dict[str, Any]:
    # T5 with tied embeddings divides the decoder's output by sqrt(D), but T5 1.1 does not. Newer
    # files have the field `scale_decoder_outputs`.
    is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    projection = str(config.get("feed_forward_proj", "relu"))
    gated, activation = projection.startswith("gated-"), projection.removeprefix("gated-")
    activation = "gelu_new" if projection == "gated-gelu" else activation
    config.require({"is_gated_act": gated, "dense_act_fn": activation})
    return {
        "num_decoder_layers": config.number("num_decoder_layers", config.number("num_layers")),
        "gated": gated,
        "scaled_logits": bool(is_scaled),
    }


def _t5_fields(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Computes T5's fields that `Family.settings` does not set, or sets only for some values."""
    return {
        "num_decoder_layers": config.num_decoder_layers,
        "d_kv": config.head_dim or config.hidden_dim // config.num_heads,
        "is_gated_act": config.activation in ("gelu_tanh", "silu"),  # as `feed_forward_proj` says
        "scale_decoder_outputs": config.scaled_logits,
    }


def _table(gated: bool) -> Table:
    table = {}
    for stack in STACKS:
        feed_forward_index = 2 if stack == "decoder" else 1  # in a block
        layers = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        table |= {
            **transformer_layer(
                f"{stack}.block.{{}}.layer.",
                [f"0.SelfAttention.{part}" for part in "qkvo"],
                "0.layer_norm",
                [f"{feed_forward_index}.DenseReluDense.{part}" for part in layers],
                f"{feed_forward_index}.layer_norm",
                [f"1.EncDecAttention.{part}" for part in "qkvo"],
                "1.layer_norm",
                path_prefix=f"{stack}/block_{{}}",
            ),
            f"{stack}/relative_bias_0": bias,
            f"{stack}/final_norm": f"{stack}.final_layer_norm",
        }
    return table


T5 = SequenceFamily(
    model_type="t5",
    name="T5",
    catalog="t5_small",
    objective="span_corruption",
    class_name="T5ForConditionalGeneration",
    tokenizer=lambda folder: read_vocabulary(folder.path, role="t5"),
    tokens=("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    table=_table(gated=False),
    gated_table=_table(gated=True),
    settings={
        "hidden_dim": ("d_model", None),
        "feed_forward_dim": ("d_ff", None),
        "num_heads": ("num_heads", None),
        "num_encoder_layers": ("num_layers", None),
        "epsilon": ("layer_norm_epsilon", 1e-6),
        "head_dim": ("d_kv", None),
        # For transformers alone: `read` compares the output matrix with the token embeddings.
        "tied": ("tie_word_embeddings", True),
        "activation": ("feed_forward_proj", "relu", _FEED_FORWARDS),
    },
    fixed_settings=parts_of("t5_small"),
    derive_settings=_t5_settings,
    derive_fields=_t5_fields,
    required_fields={
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
    output_kernel="lm_head.weight",
    body_prefixes=("encoder.", "decoder."),
    # Copies of the token embeddings, and weights that transformers ignores, too.
    ignored_suffixes=("embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"),
)
