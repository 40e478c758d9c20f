"""The causal language models of the papers, at every size."""

from macaron_tf.models.encoder_config import EncoderConfig

# GPT (Radford et al. 2018, section 4.1): 40,000 merges and 478 characters, 512 positions.
# GPT-2 (Radford et al. 2019, table 2): 50,257 pieces, 1,024 positions, a LayerNorm before each
# sub-layer and one at the end, last matrices that start 1/sqrt(sub-layers) as wide (section 2.3).
# Their released code: GELU by tanh, epsilon 1e-5, a dropout of 0.1 everywhere, no LayerNorm of the
# embeddings. Vocabularies are padded to a multiple of 8.
_GPT = {
    "causal": True,
    "num_segments": 0,
    "embedding_norm": False,
    "activation": "gelu_tanh",
    "epsilon": 1e-5,
}
_GPT2 = {**_GPT, "norm": "pre", "scaled_outputs": True, "max_length": 1024}
_GPT_VOCABULARY, _GPT2_VOCABULARY = 40_480, 50_264
_GPT2_SIZES = {  # D, H, layers
    "base": (768, 12, 12),
    "medium": (1024, 16, 24),
    "large": (1280, 20, 36),
    "xl": (1600, 25, 48),
}
# GPT-3 (Brown et al. 2020, table 2.1): GPT-2's at these shapes with 2,048 positions; every second
# layer of theirs attends sparsely, which is not here. XL has 16 heads here: the table's 24 of 128
# would come to 1.5 billion parameters, not to its 1.3.
_GPT3_SIZES = {  # D, H, d, layers
    "small": (768, 12, 64, 12),
    "medium": (1024, 16, 64, 24),
    "large": (1536, 16, 96, 24),
    "xl": (2048, 16, 128, 24),
    "2.7b": (2560, 32, 80, 32),
    "6.7b": (4096, 32, 128, 32),
    "13b": (5140, 40, 128, 40),
    "175b": (12288, 96, 128, 96),
}
# tiny and mini: the encoders', see `encoder_catalog`.
_TWO_CORES = {
    "tiny": {
        "hidden_dim": 128,
        "feed_forward_dim": 384,
        "num_heads": 4,
        "num_layers": 3,
        "initializer_range": 0.05,
    },
    "mini": {"hidden_dim": 256, "feed_forward_dim": 768, "num_heads": 4, "num_layers": 4},
}

LANGUAGE_MODELS: dict[str, EncoderConfig] = {
    **{f"gpt_{size}": EncoderConfig(8_000, **_GPT, **own) for size, own in _TWO_CORES.items()},
    **{f"gpt2_{size}": EncoderConfig(8_000, **_GPT2, **own) for size, own in _TWO_CORES.items()},
    "gpt_base": EncoderConfig(_GPT_VOCABULARY, 768, 3072, 12, 12, **_GPT),
    **{
        f"gpt2_{size}": EncoderConfig(_GPT2_VOCABULARY, width, 4 * width, heads, layers, **_GPT2)
        for size, (width, heads, layers) in _GPT2_SIZES.items()
    },
    **{
        f"gpt3_{size}": EncoderConfig(
            _GPT2_VOCABULARY,
            width,
            4 * width,
            heads,
            layers,
            **{**_GPT2, "max_length": 2048, "head_dim": head_dim},
        )
        for size, (width, heads, head_dim, layers) in _GPT3_SIZES.items()
    },
}
