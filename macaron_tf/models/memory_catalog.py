"""The models with a memory of earlier segments, at every size: Transformer-XL and XLNet."""

from macaron_tf.models.encoder_config import EncoderConfig

# Dai et al. 2019, section 4.1, "standard" for WikiText-103, and its released script: 16 layers,
# D 410, 10 heads, F 2,100, ReLU, no dropout of attention weights, u and v the same in all layers;
# 267,735 words, 151 million parameters. Its embeddings are multiplied by sqrt(D), not here, where
# the first LayerNorm undoes it.
# XLNet (Yang et al. 2019, appendix A.4; base: its released configuration): BERT's shapes, 32,000
# pieces, no LayerNorm of the embeddings, u and v of each layer, segments compared, not added.
_RELATIVE = {"positions": "transformer_xl", "embedding_norm": False}
_XL = {
    **_RELATIVE,
    "causal": True,
    "num_segments": 0,
    "shared_position_biases": True,
    "activation": "relu",
    "attention_dropout": 0.0,
    "activation_dropout": 0.1,
    "epsilon": 1e-5,
}
_XLNET = {**_RELATIVE, "activation_dropout": 0.1}
# tiny and mini: the encoders', see `encoder_catalog`.


def _two_cores(name: str, parts: dict) -> dict[str, EncoderConfig]:
    return {
        f"{name}_tiny": EncoderConfig(8_000, 128, 384, 4, 3, initializer_range=0.05, **parts),
        f"{name}_mini": EncoderConfig(8_000, 256, 768, 4, 4, **parts),
    }


MEMORY_MODELS: dict[str, EncoderConfig] = {
    **_two_cores("transformer_xl", _XL),
    "transformer_xl_base": EncoderConfig(267_736, 410, 2_100, 10, 16, **_XL),
    **_two_cores("xlnet", _XLNET),
    "xlnet_base": EncoderConfig(32_000, 768, 3072, 12, 12, **_XLNET),
    "xlnet_large": EncoderConfig(32_000, 1024, 4096, 16, 24, **_XLNET),
}
