"""T5 and BART at every size."""

import dataclasses

from macaron_tf.models.config import EncoderDecoderConfig

# Raffel et al. 2020, section 3.7 and its released configurations: 32,000 pieces, 100 sentinels and
# padding make 32,128 rows. 1.1 (its released notes): gated GELU, output untied, without dropout in
# pre-training. Lewis et al. 2020, section 2.2, with GPT-2's pieces: 50,265, padded.
_T5 = EncoderDecoderConfig(
    32_128,
    512,
    2048,
    8,
    6,
    6,
    block="transformer",
    activation_dropout=0.1,
    epsilon=1e-6,
    positions="none",
    relative_bias="shared",
    norm_type="rms",
    use_bias=False,
    head_dim=64,
    scaled=False,
    embedding_scale=False,
    scaled_logits=True,
    initializer="lecun_normal",
)
_T5_1_1 = dataclasses.replace(
    _T5, activation="gelu_tanh", gated=True, tied=False, scaled_logits=False
)
_BART = EncoderDecoderConfig(
    50_272,
    768,
    3072,
    12,
    6,
    6,
    block="transformer",
    activation_dropout=0.0,
    activation="gelu",
    norm="post",
    positions="learned",
    embedding_norm=True,
    embedding_scale=False,
    initializer_range=0.02,
)


def _size(config: EncoderDecoderConfig, hidden_dim, feed_forward_dim, heads, layers, **changes):
    """A configuration at other sizes, as many layers in both stacks."""
    return dataclasses.replace(
        config,
        hidden_dim=hidden_dim,
        feed_forward_dim=feed_forward_dim,
        num_heads=heads,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        **changes,
    )


# The tiny ones are made for two cores: the shapes of the tiny encoders. As theirs, their matrices
# start 0.05 wide where base's are 0.02; a layer for each of the step sizes 1, 2 and 4.
_TINY = {"vocab_size": 8_000, "rnn_step_sizes": (1, 2, 4)}

SEQUENCE_MODELS: dict[str, EncoderDecoderConfig] = {
    "t5_tiny": _size(_T5, 128, 384, 4, 3, head_dim=None, **_TINY),
    "t5_small": _T5,
    "t5_base": _size(_T5, 768, 3072, 12, 12),
    "t5_large": _size(_T5, 1024, 4096, 16, 24),
    "t5_3b": _size(_T5, 1024, 16_384, 32, 24, head_dim=128),
    "t5_11b": _size(_T5, 1024, 65_536, 128, 24, head_dim=128),
    "t5_1_1_small": _size(_T5_1_1, 512, 1024, 6, 8),
    "t5_1_1_base": _size(_T5_1_1, 768, 2048, 12, 12),
    "t5_1_1_large": _size(_T5_1_1, 1024, 2816, 16, 24),
    "t5_1_1_xl": _size(_T5_1_1, 2048, 5120, 32, 24),
    "t5_1_1_xxl": _size(_T5_1_1, 4096, 10_240, 64, 24),
    "bart_tiny": _size(_BART, 128, 384, 4, 3, max_length=256, initializer_range=0.05, **_TINY),
    "bart_base": _BART,
    "bart_large": _size(_BART, 1024, 4096, 16, 12),
}
