"""Catalog of all named model configurations."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import keras

from macaron_tf.errors import nearest
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.elmo import Elmo, ElmoConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.tcn import TemporalConfig, TemporalModel

Config = EncoderDecoderConfig | EncoderConfig | ElmoConfig | TemporalConfig
_MODELS: dict[type, type[keras.Model]] = {
    EncoderDecoderConfig: EncoderDecoder,
    EncoderConfig: Encoder,
    ElmoConfig: Elmo,
    TemporalConfig: TemporalModel,
}


def _entry(config_class: type, *sizes: Any, **options: Any) -> partial:
    """Returns a configuration that is not made yet: its class and the fields that are given.

    `sizes` are the values of the first fields. `partial(entry, **changes)` changes fields, and
    calling the entry makes the configuration, which checks the fields.
    """
    fields = (field.name for field in dataclasses.fields(config_class) if not field.kw_only)
    return partial(config_class, **dict(zip(fields, sizes, strict=False)), **options)


# base and large are from Devlin et al. 2018 and Lei et al. 2022, table 3. The 30,522 word pieces
# are padded to a multiple of 8. small is from Clark et al. 2020 (ELECTRA), table 6. tiny and mini
# are for CPUs with two cores. In tiny and mini, F = 3 D, so that two thirds of F are a multiple of
# 64 and all blocks have the same number of parameters. tiny has one layer for each step size 1, 2
# and 4. The initializer range of base is scaled to the width of tiny: 0.02 sqrt(768 / 128) = 0.05.
_encoder = partial(_entry, EncoderConfig)
_CPU_SIZES = {
    "tiny": _encoder(8_000, 128, 384, 4, 3, initializer_range=0.05),
    "mini": _encoder(8_000, 256, 768, 4, 4),
}
_BASE = {"base": _encoder(30_528, 768, 3072, 12, 12)}
_PAPER_SIZES = {**_BASE, "large": _encoder(30_528, 1024, 4096, 16, 24)}
_SIZES = {**_CPU_SIZES, **_PAPER_SIZES}


def _family(name: str, sizes: Mapping[str, partial] = _SIZES, **changes: Any) -> dict[str, partial]:
    """Returns a family's entries by name: `sizes` with the fields in `changes`."""
    family = {f"{name}_{size}": partial(entry, **changes) for size, entry in sizes.items()}
    if not changes.get("gated"):
        return family
    # A gated feed-forward layer has three matrices of two thirds of the width.
    widths = {name: entry.keywords["feed_forward_dim"] * 2 // 3 for name, entry in family.items()}
    return {name: partial(family[name], feed_forward_dim=widths[name]) for name in family}


# GPT (Radford et al. 2018, section 4.1) has 40,000 merges, 478 characters and 512 positions. GPT-2
# (Radford et al. 2019, table 2) has 50,257 tokens, 1,024 positions, a LayerNorm before each
# sub-layer and a final LayerNorm. The initial standard deviation of the last matrices is divided by
# sqrt(number of sub-layers) (section 2.3). The released code uses the tanh approximation of GELU,
# epsilon 1e-5, dropout 0.1 everywhere, and no LayerNorm after the embeddings. Vocabularies are
# padded to a multiple of 8.
_GPT: dict[str, Any] = dict(
    causal=True, num_segments=0, embedding_norm=False, activation="gelu_tanh", epsilon=1e-5
)
_GPT2 = {**_GPT, "norm": "pre", "scaled_outputs": True, "max_length": 1024}
_GPT3 = {**_GPT2, "max_length": 2048}
_GPT2_SIZES = {  # D, H, layers
    "base": (768, 12, 12),
    "medium": (1024, 16, 24),
    "large": (1280, 20, 36),
    "xl": (1600, 25, 48),
}


# GPT-3 (Brown et al. 2020, table 2.1) is GPT-2 in the sizes below with 2,048 positions. GPT-3
# alternates full and sliding-window attention, but the paper does not give the window. All layers
# in these configurations have full attention unless `attention_windows` is set. XL has 16 heads in
# this catalog, because 24 heads of width 128, as in the table, would give 1.5 billion parameters
# instead of the table's 1.3 billion.
_GPT3_SIZES = {  # D, H, layers, d
    "small": (768, 12, 12, 64),
    "medium": (1024, 16, 24, 64),
    "large": (1536, 16, 24, 96),
    "xl": (2048, 16, 24, 128),
    "2.7b": (2560, 32, 32, 80),
    "6.7b": (4096, 32, 32, 128),
    "13b": (5140, 40, 40, 128),
    "175b": (12288, 96, 96, 128),
}
# Llama (Touvron et al. 2023, sections 2.1 to 2.3) has no biases, no dropout, and a gated
# feed-forward layer with three matrices of two thirds of F. Grouped queries were introduced in
# Llama 2's 70B model. In tiny, mini and base, two or three query heads share a key head. 7b is from
# the first paper, and 3_8b is Llama 3's.
_LLAMA: dict[str, Any] = {
    **{"causal": True, "num_segments": 0, "embedding_norm": False, "positions": "rotary"},
    **{"norm": "pre", "norm_type": "rms", "epsilon": 1e-5, "use_bias": False},
    **{"activation": "silu", "gated": True, "dropout": 0.0, "attention_dropout": 0.0},
}
# Transformer-XL is the "standard" model for WikiText-103 in Dai et al. 2019, section 4.1, with the
# released script: 16 layers, D 410, 10 heads, F 2,100, ReLU, no dropout of attention weights, u and
# v shared by all layers, 267,735 words, an adaptive softmax tied to the embeddings, and 151 million
# parameters. Embeddings are multiplied by sqrt(D), but not in the tiny and mini configurations.
# XLNet (Yang et al. 2019, appendix A.4, and the released configuration of base) has BERT's sizes,
# 32,000 tokens, no LayerNorm after the embeddings, and separate u and v in each layer. Attention
# compares segments, so segment embeddings are not added. Dropout after GELU is from the released
# code, and does not appear in table 7.
_RELATIVE: dict[str, Any] = {"positions": "transformer_xl", "embedding_norm": False}
_XL = {
    **{**_RELATIVE, "causal": True, "num_segments": 0, "shared_position_biases": True},
    **{"activation": "relu", "epsilon": 1e-5, "attention_dropout": 0.0, "activation_dropout": 0.1},
}
_XLNET = {**_RELATIVE, "activation_dropout": 0.1}
# BERT-rab and the SwishRNN model have T5's bias in addition to learned positions (Lei et al. 2022,
# section 3, says that the model "adds" the bias to each attention layer). The released Macaron runs
# are all pre-norm. RoBERTa (Liu et al. 2019) and SpanBERT (Joshi et al. 2020) have no segment
# embeddings. ALBERT (Lan et al. 2020, table 1) has 30,000 tokens and E 128, and all layers share
# weights. ELECTRA's small size has E 128 (Clark et al. 2020, table 6). XLM (Conneau and Lample
# 2019, section 5.1) has 12 layers, D 1024, 8 heads, 95,000 tokens and 15 languages for XNLI, but no
# segments. gMLP and aMLP (Liu et al. 2021) have no position encoding besides their matrices. With
# Toeplitz matrices for 512 positions and 32,000 tokens, gmlp_base has 130 million and gmlp_large
# 365 million parameters, as published. In gmlp_tiny, six thin layers have as many parameters as
# three layers of bert_tiny: 6 x 1.5 D F = 3 x 10 D^2.
_ALBERT_SIZES = {  # with H = D / 64 heads and F = 4 D
    **_PAPER_SIZES,
    "xlarge": _encoder(30_000, 2048, 8192, 32, 24),
    "xxlarge": _encoder(30_000, 4096, 16384, 64, 12),
}
_SHARED: dict[str, Any] = {"sharing": "all", "activation": "gelu_tanh"}
_GATED: dict[str, Any] = {"positions": "none", "num_segments": 0, "norm": "pre"}
_GATED_TINY = _encoder(8_000, 128, 416, 4, 6, initializer_range=0.05, **_GATED)
_ROBERTA: dict[str, Any] = {"num_segments": 0, "epsilon": 1e-5}
# ModernBERT (Warner et al. 2024, sections 2.1 and 2.2, table 4, and the released configurations)
# has no biases, no segments, one norm between the embeddings and the first attention, and gated
# feed-forward layers. The initial standard deviation of the last matrices is divided by sqrt(number
# of sub-layers). Every third layer has full attention, and the other layers attend to 64 positions
# on each side. tiny and mini, which were trained on sequences of 64 tokens, attend to 16 positions
# on each side.
_MODERN: dict[str, Any] = {
    **{"norm": "pre", "norm_type": "unbiased", "first_norm": False, "epsilon": 1e-5},
    **{"use_bias": False, "gated": True, "dropout": 0.0, "attention_dropout": 0.0},
    **{"positions": "rotary", "rotary_base": 160_000.0, "local_rotary_base": 10_000.0},
    **{"attention_windows": (0, 128, 128), "scaled_outputs": True, "max_length": 8192},
    "num_segments": 0,
}

# T5 (Raffel et al. 2020, section 3.7, and the released configurations) has 32,000 tokens. With 100
# sentinels and padding, there are 32,128 ids. T5 1.1 (released notes) has gated GELU, an untied
# output matrix, and no dropout in pre-training. BART (Lewis et al. 2020, section 2.2) has GPT-2's
# tokens. The 50,265 ids are padded to a multiple of 8.
_T5: dict[str, Any] = {
    **{"block": "transformer", "norm_type": "rms", "epsilon": 1e-6, "activation_dropout": 0.1},
    **{"positions": "none", "relative_bias": "shared", "use_bias": False, "head_dim": 64},
    **{"scaled": False, "embedding_scale": False, "scaled_logits": True},
    "initializer": "lecun_normal",
}
_T5_1_1 = {**_T5, "activation": "gelu_tanh", "gated": True, "tied": False, "scaled_logits": False}
_BART: dict[str, Any] = {
    **{"block": "transformer", "norm": "post", "activation": "gelu", "activation_dropout": 0.0},
    **{"positions": "learned", "embedding_norm": True, "embedding_scale": False},
    "initializer_range": 0.02,
}
# The tiny models are for CPUs with two cores and have the sizes of the tiny encoders. As in the
# tiny encoders, the initializer range is 0.05 instead of 0.02, and there is one layer for each step
# size 1, 2 and 4.
_TINY = {"rnn_step_sizes": (1, 2, 4)}

# Default sizes of the joint vocabulary are the paper's sizes. Both are multiples of 8.
_IWSLT_VOCABULARY, _WMT_VOCABULARY = 10_000, 37_000
_pair = partial(_entry, EncoderDecoderConfig)
_NO_INNER_DROPOUT = {"attention_dropout": 0.0, "activation_dropout": 0.0}
# Sizes are from Lu et al. 2019, appendix B.1. feed_forward_dim is the total width in a layer, which
# has two feed-forward layers in Macaron. small follows the released code, 2 x 512, whereas the
# paper says 2 x 1024. tiny is the published Transformer-Tiny for Multi30k: 4 encoder and 4 decoder
# layers, D 128, F 256, 4 heads.
_TRANSLATORS = {
    "tiny": _pair(_IWSLT_VOCABULARY, 128, 256, 4, 4, 4, dropout=0.3, **_NO_INNER_DROPOUT),
    "small": _pair(_IWSLT_VOCABULARY, 512, 1024, 4, 6, 6, dropout=0.3),
    "base": _pair(_WMT_VOCABULARY, 512, 2048, 8, 6, 6),
    "big": _pair(_WMT_VOCABULARY, 1024, 4096, 16, 6, 6, dropout=0.3),
}

# Kernel sizes, blocks, channels and dropout rates are from the code released with Bai et al. 2018.
# The two music models follow table 2 of the paper (not verified) and have 300K and 1M parameters,
# whereas the released default for both is kernel size 5, 4 blocks of 150 channels and dropout 0.25.
# The models for WikiText-103 and LAMBADA follow the same table (not verified). The vocabularies of
# these models depend on the data.
_tcn = partial(_entry, TemporalConfig)


def _tied_tcn(vocab_size: int, *widths: int, **options: Any) -> partial:
    """Returns the entry of a TCN whose output matrix is its token embedding table."""
    table = {"vocab_size": vocab_size, "embedding_dim": widths[-1], "tied": True}
    return _tcn(vocab_size, widths, **table, **options)


CONFIGS: dict[str, partial] = {
    **_family("transformer", _TRANSLATORS, block="transformer"),
    **_family("macaron", _TRANSLATORS, block="macaron"),
    "t5_tiny": _pair(8_000, 128, 384, 4, 3, 3, **{**_T5, **_TINY, "head_dim": None}),
    "t5_small": _pair(32_128, 512, 2048, 8, 6, 6, **_T5),
    "t5_base": _pair(32_128, 768, 3072, 12, 12, 12, **_T5),
    "t5_large": _pair(32_128, 1024, 4096, 16, 24, 24, **_T5),
    "t5_3b": _pair(32_128, 1024, 16_384, 32, 24, 24, **{**_T5, "head_dim": 128}),
    "t5_11b": _pair(32_128, 1024, 65_536, 128, 24, 24, **{**_T5, "head_dim": 128}),
    "t5_1_1_small": _pair(32_128, 512, 1024, 6, 8, 8, **_T5_1_1),
    "t5_1_1_base": _pair(32_128, 768, 2048, 12, 12, 12, **_T5_1_1),
    "t5_1_1_large": _pair(32_128, 1024, 2816, 16, 24, 24, **_T5_1_1),
    "t5_1_1_xl": _pair(32_128, 2048, 5120, 32, 24, 24, **_T5_1_1),
    "t5_1_1_xxl": _pair(32_128, 4096, 10_240, 64, 24, 24, **_T5_1_1),
    "bart_tiny": _pair(
        *(8_000, 128, 384, 4, 3, 3),
        **{**_BART, **_TINY, "max_length": 256, "initializer_range": 0.05},
    ),
    "bart_base": _pair(50_272, 768, 3072, 12, 6, 6, **_BART),
    "bart_large": _pair(50_272, 1024, 4096, 16, 12, 12, **_BART),
    **_family("bert"),
    **_family("bert_rab", relative_bias="per_layer"),
    **_family("swish_rnn", relative_bias="per_layer", block="swish_rnn", rnn_step_sizes=(1, 2, 4)),
    **_family("macaron_bert", block="macaron", norm="pre"),
    **_family("roberta", _CPU_SIZES, **_ROBERTA),
    **_family("roberta", _PAPER_SIZES, vocab_size=50_272, **_ROBERTA),
    **_family("modern_bert", _CPU_SIZES, **{**_MODERN, "attention_windows": (0, 32, 32)}),
    "modern_bert_base": _encoder(50_368, 768, 1152, 12, 22, **_MODERN),
    "modern_bert_large": _encoder(50_368, 1024, 2624, 16, 28, **_MODERN),
    **_family("span_bert", num_segments=0),
    **_family("albert", _CPU_SIZES, embedding_dim=64, **_SHARED),
    **_family("albert", _ALBERT_SIZES, vocab_size=30_000, embedding_dim=128, **_SHARED),
    **_family("electra"),
    "electra_small": _encoder(30_528, 256, 1024, 4, 12, embedding_dim=128),
    **_family("xlm", _CPU_SIZES, num_languages=3, num_segments=0),
    "gmlp_tiny": partial(_GATED_TINY, block="gmlp"),
    "gmlp_base": _encoder(32_000, 512, 3072, 8, 48, block="gmlp", **_GATED),
    "gmlp_large": _encoder(32_000, 768, 3072, 12, 96, block="gmlp", **_GATED),
    "amlp_tiny": partial(_GATED_TINY, block="amlp", tiny_attention_dim=32),
    "amlp_base": _encoder(32_000, 512, 3072, 8, 36, block="amlp", **_GATED),
    "amlp_large": _encoder(
        32_000, 768, 3072, 12, 72, block="amlp", tiny_attention_dim=128, **_GATED
    ),
    "xlm_xnli": _encoder(95_000, 1024, 4096, 8, 12, num_segments=0, num_languages=15),
    **_family("gpt", _CPU_SIZES, **_GPT),
    **_family("gpt", _BASE, vocab_size=40_480, **_GPT),
    **_family("gpt2", _CPU_SIZES, **_GPT2),
    **{
        f"gpt2_{size}": _encoder(50_264, width, 4 * width, heads, layers, **_GPT2)
        for size, (width, heads, layers) in _GPT2_SIZES.items()
    },
    **{
        f"gpt3_{size}": _encoder(50_264, width, 4 * width, *numbers, head_dim=head_dim, **_GPT3)
        for size, (width, *numbers, head_dim) in _GPT3_SIZES.items()
    },
    **_family("llama", _CPU_SIZES, num_kv_heads=2, **_LLAMA),
    **_family("llama", _BASE, num_kv_heads=4, **_LLAMA),
    "llama_7b": _encoder(32_000, 4096, 11_008, 32, 32, tied=False, **{**_LLAMA, "epsilon": 1e-6}),
    "llama_3_8b": _encoder(
        128_256, 4096, 14_336, 32, 32, num_kv_heads=8, rotary_base=5e5, tied=False, **_LLAMA
    ),
    **_family("transformer_xl", _CPU_SIZES, **_XL),
    "transformer_xl_base": _encoder(
        *(267_736, 410, 2_100, 10, 16),
        **{**_XL, "embedding_scale": True, "adaptive_cutoffs": (20_000, 40_000, 200_000)},
    ),
    **_family("xlnet", _CPU_SIZES, **_XLNET),
    **_family("xlnet", _PAPER_SIZES, vocab_size=32_000, **_XLNET),
    # Peters et al. 2018, section 3.4. The model has 93.6M parameters, without the matrix that
    # scores the 793,471 words of the One Billion Word Benchmark.
    "elmo_original": _entry(ElmoConfig, 793_471),
    # A model for two CPU cores: an epoch of two million words takes about a quarter of an hour.
    "elmo_tiny": _entry(
        ElmoConfig,
        *(8_000, 256, 128),
        max_characters=20,
        filters=((1, 16), (2, 32), (3, 64), (4, 128)),
    ),
    "tcn_adding": _tcn(1, (30,) * 8, kernel_size=7, input_dim=2, last_only=True),
    "tcn_copy_memory": _tcn(10, (10,) * 8, kernel_size=8, input_dim=10),
    "tcn_jsb": _tcn(88, (150,) * 2, kernel_size=3, input_dim=88, dropout=0.5),
    "tcn_nottingham": _tcn(88, (150,) * 4, kernel_size=6, input_dim=88, dropout=0.2),
    "tcn_mnist": _tcn(10, (25,) * 8, kernel_size=7, input_dim=1, dropout=0.05, last_only=True),
    "tcn_ptb_words": _tied_tcn(10_000, *(600,) * 4, dropout=0.45, embedding_dropout=0.25),
    "tcn_wikitext": _tied_tcn(10_000, *(1_000,) * 5, dropout=0.4),
    "tcn_lambada": _tied_tcn(10_000, *(500,) * 5, kernel_size=4, dropout=0.4),
    "tcn_ptb_characters": _tied_tcn(50, 450, 450, 100, dropout=0.1, embedding_dropout=0.1),
}


def names(config_class: type | None = None) -> list[str]:
    """Returns the sorted names of all configurations, or of those of one class."""
    return sorted(name for name, entry in CONFIGS.items() if config_class in (None, entry.func))


def config(name: str, /, **overrides) -> Config:
    """Returns a named configuration, with fields replaced by `overrides`."""
    if name not in CONFIGS:
        hint, choices = nearest(name, CONFIGS), ", ".join(names())
        raise ValueError(f"no model has the name {name!r}: give one of {choices}{hint}")
    return CONFIGS[name](**overrides)


def build(name: str, /, dtype: str | None = None, **overrides) -> keras.Model:
    """Builds a model of the catalog, with configuration fields replaced by `overrides`.

    The model is an `EncoderDecoder`, an `Encoder` without a head, an `Elmo` or a `TemporalModel`. A
    field that has no effect in this network raises a ValueError.

    Example:
        model = build("macaron_tiny", vocab_size=8000)
        encoder = build("swish_rnn_base", rnn_step_sizes=(1,))
    """
    model = network(config(name, **overrides), dtype)
    for field in model.unread():
        if field in overrides:
            raise ValueError(f"{field} has no effect in this network: leave {field} out")
    model.build()
    return model


def network(configuration: Config, dtype: str | None = None) -> keras.Model:
    """Returns the model for a configuration. The model is not built yet."""
    return _MODELS[type(configuration)](configuration, dtype=dtype)


def sized_name(name: str, options: Mapping[str, Any]) -> str:
    """Describes a model by its name and its other sizes: `bert_base with hidden_dim=128`."""
    size_fields = ("hidden_dim", "num_layers", "num_encoder_layers", "num_decoder_layers")
    sizes = [f"{field}={value}" for field, value in options.items() if field in size_fields]
    return f"{name} with {', '.join(sizes)}" if sizes else name
