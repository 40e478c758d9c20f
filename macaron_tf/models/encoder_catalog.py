"""The papers' encoders: what each family changes in BERT, at every size."""

import dataclasses

from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.language_catalog import LANGUAGE_MODELS
from macaron_tf.models.memory_catalog import MEMORY_MODELS

# base and large: Devlin et al. 2018 and Lei et al. 2022, table 3; 30,522 word pieces are padded.
# small is ELECTRA's (Clark et al. 2020, table 6).
# tiny and mini are made for two cores; F = 3 D, for two thirds of it are a multiple of 64 and all
# blocks count the same. tiny has a layer for each of the step sizes 1, 2 and 4, and matrices that
# start as base's do for its width: 0.02 sqrt(768 / 128) = 0.05.
_SIZES = {
    "tiny": EncoderConfig(8_000, 128, 384, 4, 3, initializer_range=0.05),
    "mini": EncoderConfig(8_000, 256, 768, 4, 4),
    "small": EncoderConfig(30_528, 256, 1024, 4, 12),
    "base": EncoderConfig(30_528, 768, 3072, 12, 12),
    "large": EncoderConfig(30_528, 1024, 4096, 16, 24),
    # ALBERT's: H = D / 64 heads, F = 4 D.
    "xlarge": EncoderConfig(30_000, 2048, 8192, 32, 24),
    "xxlarge": EncoderConfig(30_000, 4096, 16384, 64, 12),
}
_TWO_CORES, _PAPERS = ("tiny", "mini"), ("base", "large")


def _family(name: str, sizes: tuple[str, ...] = (*_TWO_CORES, *_PAPERS), **changes) -> dict:
    """A family's configurations by name."""
    return {f"{name}_{size}": dataclasses.replace(_SIZES[size], **changes) for size in sizes}


# BERT-rab and the SwishRNN model have T5's bias beside the learned positions (Lei et al. 2022,
# section 3: it "adds" the bias to each attention layer); the released Macaron runs are all
# pre-norm. RoBERTa (Liu et al. 2019) and SpanBERT (Joshi et al. 2020) read one segment.
# ALBERT (Lan et al. 2020, table 1): 30,000 pieces, E 128, one layer's weights for all.
# ELECTRA's small size has E 128 (Clark et al. 2020, table 6).
# XLM (Conneau and Lample 2019, section 5.1): 12 layers, D 1024, 8 heads, 95,000 pieces and 15
# languages for XNLI; no segments.
# gMLP and aMLP (Liu et al. 2021) have no positions but those in their matrices; Toeplitz ones for
# 512 positions and 32,000 pieces give the parameters that the slides state.
# On two cores their six thin layers count as BERT's three: 6 x 1.5 D F = 3 x (4 + 2 x 3) D^2.
_ONE_SEGMENT = {"num_segments": 0}
_SHARED = {"sharing": "all", "activation": "gelu_tanh"}
_GATED_PAPER = {"positions": "none", "num_segments": 0, "norm": "pre"}
_GATED = EncoderConfig(8_000, 128, 416, 4, 6, initializer_range=0.05, **_GATED_PAPER)
_ROBERTA = {**_ONE_SEGMENT, "epsilon": 1e-5}

ENCODERS: dict[str, EncoderConfig] = {
    **_family("bert"),
    **_family("bert_rab", relative_bias="per_layer"),
    **_family("swish_rnn", relative_bias="per_layer", block="swish_rnn", rnn_step_sizes=(1, 2, 4)),
    **_family("macaron_bert", block="macaron", norm="pre"),
    **_family("roberta", _TWO_CORES, **_ROBERTA),
    **_family("roberta", _PAPERS, vocab_size=50_272, **_ROBERTA),
    **_family("span_bert", **_ONE_SEGMENT),
    **_family("albert", _TWO_CORES, embedding_dim=64, **_SHARED),
    **_family(
        "albert",
        (*_PAPERS, "xlarge", "xxlarge"),
        vocab_size=30_000,
        embedding_dim=128,
        **_SHARED,
    ),
    **_family("electra"),
    **_family("electra", ("small",), embedding_dim=128),
    **_family("xlm", _TWO_CORES, num_languages=3, **_ONE_SEGMENT),
    "gmlp_tiny": dataclasses.replace(_GATED, block="gmlp"),
    "gmlp_base": EncoderConfig(32_000, 512, 3072, 8, 48, block="gmlp", **_GATED_PAPER),
    "gmlp_large": EncoderConfig(32_000, 768, 3072, 12, 96, block="gmlp", **_GATED_PAPER),
    "amlp_tiny": dataclasses.replace(_GATED, block="amlp", tiny_attention_dim=32),
    "amlp_base": EncoderConfig(32_000, 512, 3072, 8, 36, block="amlp", **_GATED_PAPER),
    "amlp_large": EncoderConfig(
        32_000, 768, 3072, 12, 72, block="amlp", tiny_attention_dim=128, **_GATED_PAPER
    ),
    "xlm_xnli": EncoderConfig(95_000, 1024, 4096, 8, 12, num_segments=0, num_languages=15),
    **LANGUAGE_MODELS,
    **MEMORY_MODELS,
}
