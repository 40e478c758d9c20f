"""Tests of splitting schemes as a setting of encoders, language models and translators."""

import numpy as np
import pytest

from macaron_tf.models import (
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
)
from macaron_tf.models.config import differing_fields
from macaron_tf.settings import SettingError
from tests.harness import built, check_model, ids, numpy_of
from tests.toys.marks import slow

MACARON = "channels/2, tokens, channels/2"
DRY = {"dropout": 0.0, "attention_dropout": 0.0}
TEXT = {"token_ids": ids(2, 6)}
PAIRS = {"source": ids(2, 6), "target": ids(2, 5, seed=1)}


def encoder(**options):
    return built(Encoder, EncoderConfig(24, 16, 32, 2, 2, **DRY, **options), noise=0.2)


def language_model(**options):
    config = EncoderConfig(24, 16, 32, 2, 2, causal=True, num_segments=0, **DRY, **options)
    return built(LanguageModel, config, noise=0.2)


def translator(**options):
    config = EncoderDecoderConfig(24, 16, 32, 2, 2, 2, activation_dropout=0.0, **DRY, **options)
    return built(EncoderDecoder, config, noise=0.2)


SYSTEMS = [
    (encoder, TEXT, {"sharing": "all", "relative_bias": "per_layer"}),
    (language_model, TEXT, {"positions": "transformer_xl"}),
    (translator, PAIRS, {"relative_bias": "shared", "norm_type": "rms"}),
]
SCHEMES = [
    MACARON,
    "2 x (tokens/2, channels/2)",
    "tokens/2 by heun, channels step 2 width 1/4 by midpoint & tokens/2 by heun again & channels/2",
]


@pytest.mark.parametrize(("make", "inputs", "options"), [*SYSTEMS[:2], *slow(SYSTEMS[2])])
def test_a_transformer_with_macarons_scheme_is_the_macaron_to_the_bit(make, inputs, options):
    """A Transformer with Macaron's scheme is bit-identical to a Macaron from initialization on."""
    macaron = make(block="macaron", **options)
    other = make(block="transformer", scheme=MACARON, **options)
    assert other.count_params() == macaron.count_params()
    for ours, theirs in zip(other.weights, macaron.weights, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(numpy_of(ours), numpy_of(theirs))
    np.testing.assert_array_equal(numpy_of(other(inputs)), numpy_of(macaron(inputs)))
    plain = make(block="transformer", **options)
    assert np.abs(numpy_of(plain(inputs)) - numpy_of(macaron(inputs))).max() > 0.1
    back = make(block="macaron", scheme="tokens, channels", **options)
    np.testing.assert_array_equal(numpy_of(back(inputs)), numpy_of(plain(inputs)))


@pytest.mark.parametrize("scheme", [*slow(*SCHEMES[:2]), SCHEMES[2]])
@pytest.mark.parametrize(("make", "inputs", "options"), [SYSTEMS[0], *slow(*SYSTEMS[1:])])
def test_a_scheme_is_kept_with_a_model(make, inputs, options, scheme, tmp_path):
    model = make(scheme=scheme, **options)
    assert model.get_config()["config"]["config"]["scheme"] == scheme
    check_model(model, inputs, tmp_path)


def test_a_scheme_in_other_words_is_the_same():
    sizes = (24, 16, 32, 2, 2)
    plain, spelt = (EncoderConfig(*sizes, scheme=one) for one in (None, "tokens, channels step 1"))
    assert not differing_fields(spelt, plain) and not differing_fields(plain, spelt)
    ends = ("/2", " step 1/2")
    half, step = (EncoderConfig(*sizes, scheme=f"tokens, channels{end}") for end in ends)
    assert differing_fields(half, step) == {"scheme": "tokens, channels/2"}
    step = EncoderConfig(*sizes, scheme="tokens, channels step 1/2 width .5")
    assert not differing_fields(half, step)
    macaron = EncoderConfig(*sizes, block="macaron")
    spelt = EncoderConfig(*sizes, scheme=MACARON)
    assert differing_fields(spelt, macaron) == {"block": "transformer", "scheme": MACARON}


def test_layers_share_each_step_of_a_scheme():
    shared, apart = (
        encoder(scheme="2 x (tokens/2, channels/2)", sharing=sharing).stack.blocks
        for sharing in ("all", "none")
    )
    assert shared[1].sublayers[2][1] is shared[0].sublayers[2][1]
    assert shared[0].sublayers[2][1] is not shared[0].sublayers[0][1]
    assert apart[1].sublayers[2][1] is not apart[0].sublayers[2][1]


@pytest.mark.thorough
def test_memory_has_its_place_in_decoders_only():
    model = translator(scheme="channels/2, tokens, channels/2, memory", num_source_layers=1)
    kinds = [
        [kind for kind, _ in stack.blocks[0].sublayers]
        for stack in (model.encoder, model.decoder, model.source_encoder.stack)
    ]
    plain = ["channels", "tokens", "channels"]
    assert kinds == [plain, [*plain, "memory"], plain]
    steps = [mix.step_size for mix in model.source_encoder.stack.blocks[0].scheme]
    assert steps == [0.5, 1.0, 0.5]
    model = translator(scheme="memory & tokens & channels", num_source_layers=1)
    steps = model.source_encoder.stack.blocks[0].steps
    assert [[kind for kind, _ in step] for step in steps] == [["tokens", "channels"]]
    with pytest.raises(SettingError, match="sharing='attention' excludes branches"):
        encoder(scheme="tokens & channels", sharing="attention")
    with pytest.raises(SettingError, match="scheme='tokens, memory' has 'memory' in an encoder"):
        encoder(scheme="tokens, memory")
