"""Every named model configuration, by name."""

import dataclasses

import keras

from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.elmo import Elmo
from macaron_tf.models.elmo_catalog import ELMOS
from macaron_tf.models.elmo_config import ElmoConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_catalog import ENCODERS
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.sequence_catalog import SEQUENCE_MODELS
from macaron_tf.models.temporal_catalog import TEMPORAL_MODELS
from macaron_tf.models.temporal_config import TemporalConfig
from macaron_tf.models.temporal_model import TemporalModel

Config = EncoderDecoderConfig | EncoderConfig | ElmoConfig | TemporalConfig
_MODELS: dict[type, type[keras.Model]] = {
    EncoderDecoderConfig: EncoderDecoder,
    EncoderConfig: Encoder,
    ElmoConfig: Elmo,
    TemporalConfig: TemporalModel,
}

# Width of the joint vocabulary when none is given: the paper's for the size, padded to a
# multiple of 8 (37,000 already is one).
_IWSLT_VOCABULARY, _WMT_VOCABULARY = 10_000, 37_000

# Sizes of Lu et al. 2019, appendix B.1; feed_forward_dim is a whole layer's, which Macaron halves.
# small follows the released code, 2 x 512; the paper's text says 2 x 1024 (feed_forward_dim=2048).
# tiny is the Transformer-Tiny that is published for Multi30k: 4+4 layers, D 128, F 256, 4 heads.
_TRANSLATORS = {
    "tiny": EncoderDecoderConfig(
        _IWSLT_VOCABULARY, 128, 256, 4, 4, 4, dropout=0.3, attention_dropout=0.0,
        activation_dropout=0.0,
    ),
    "small": EncoderDecoderConfig(_IWSLT_VOCABULARY, 512, 1024, 4, 6, 6, dropout=0.3),
    "base": EncoderDecoderConfig(_WMT_VOCABULARY, 512, 2048, 8, 6, 6),
    "big": EncoderDecoderConfig(_WMT_VOCABULARY, 1024, 4096, 16, 6, 6, dropout=0.3),
}  # fmt: skip

CONFIGS: dict[str, Config] = {
    **{
        f"{block}_{size}": dataclasses.replace(config, block=block)
        for block in ("transformer", "macaron")
        for size, config in _TRANSLATORS.items()
    },
    **SEQUENCE_MODELS,
    **ENCODERS,
    **ELMOS,
    **TEMPORAL_MODELS,
}


def names(kind: type | None = None) -> list[str]:
    """The names that `config` and `build` know.

    Args:
        kind: only those with a configuration of this class.
    """
    return sorted(name for name, known in CONFIGS.items() if kind in (None, type(known)))


def config(name: str, /, **overrides) -> Config:
    """The configuration of that name, fields replaced by `overrides`.

    Raises:
        ValueError: for a name or a field that does not exist; it lists those that do.
    """
    if name not in CONFIGS:
        raise ValueError(f"no model is called {name!r}; the catalog has {', '.join(names())}")
    known = {field.name for field in dataclasses.fields(CONFIGS[name])}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ValueError(
            f"model option {unknown[0]!r} does not exist; there are {', '.join(sorted(known))}"
        )
    return dataclasses.replace(CONFIGS[name], **overrides)


def build(name: str, /, dtype: str | None = None, **overrides) -> keras.Model:
    """A built model by name, fields of its configuration replaced by `overrides`.

    Args:
        name: one of `names()`.
        dtype: a Keras dtype policy such as `"mixed_bfloat16"`; Keras's global one by default.

    Returns:
        An `EncoderDecoder`, an `Encoder` without heads, an `Elmo` or a `TemporalModel`.

    Raises:
        ValueError: as `config`.

    Example:
        model = build("macaron_tiny", vocab_size=8000)
        encoder = build("swish_rnn_base", rnn_step_sizes=(1,))
    """
    described = config(name, **overrides)
    model = _MODELS[type(described)](described, dtype=dtype)
    model.build()
    return model
