"""Stacks with schemes and with rematerialized blocks (gradient checkpointing)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import (
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
)
from macaron_tf.models.config import differing_fields
from macaron_tf.models.segment_memory import SegmentLanguageModel, TwoStreamModel
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


SHAPE = (16, 8, 24, 2)
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 3, 0, 0]], np.int32)


def small_language_model(**options):
    config = EncoderConfig(*SHAPE, 2, causal=True, norm="pre", **DROPOUTS, **options)
    return LanguageModel(config), lambda net: net.hidden_states({"token_ids": IDS}, training=True)


def encoder_decoder(**options):
    """Returns an encoder-decoder, and a function that computes its hidden states.

    Gradients flow to the encoder's output and the relative bias. Two branches share a norm.
    """
    options |= {"relative_bias": "shared", "scheme": "channels/2, tokens & channels/2"}
    config = EncoderDecoderConfig(*SHAPE, 2, 2, **DROPOUTS, **options)
    inputs = {"source": IDS, "target": IDS}
    return EncoderDecoder(config), lambda net: net.hidden_states(inputs, training=True)


def segments(**options):
    config = EncoderConfig(*SHAPE, 2, causal=True, positions="transformer_xl", **options)
    network = SegmentLanguageModel(config, memory_length=3)

    def hidden(net):
        _, memory = net.with_memory({"token_ids": IDS}, net.init_memory(2), training=True)
        return net.with_memory({"token_ids": IDS}, memory, training=True)[0]

    return network, hidden


def two_streams(**options):
    """Returns a two-stream model without segments, and a function that computes its query stream.

    Gradients flow from the query stream to the keys of the content stream.
    """
    config = EncoderConfig(*SHAPE, 2, positions="transformer_xl", **DROPOUTS, **options)
    network = TwoStreamModel(config, memory_length=3)
    inputs = {
        "token_ids": IDS,
        "order": np.array([[3, 1, 0, 4, 2], [0, 2, 1, 3, 4]], np.int32),
        "masked_positions": np.array([[0, 3], [1, 2]], np.int32),
    }

    def hidden(net):
        return net.two_streams(inputs, net.init_memory(2), training=True)[1]

    return network, hidden


def two_steps(make, remat: bool, jit_compile: bool) -> list[np.ndarray]:
    """Returns the losses and gradients of two steps with dropout, and the final random states."""
    keras.utils.set_random_seed(1)
    network, hidden = make(remat=remat)
    network.build()

    @tf.function(autograph=False, jit_compile=jit_compile)
    def step():
        variables = [variable.value for variable in network.trainable_variables]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(network.logits(hidden(network))))
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, variables))]

    found = [array.numpy() for _ in range(2) for array in step()]
    return found + [variable.numpy() for variable in network.non_trainable_variables]


def swish_rnn(**options):
    return small_language_model(block="swish_rnn", **options)


@pytest.mark.parametrize(
    ("make", "jit_compile"),
    [
        (small_language_model, False),
        *slow(*((swish_rnn, compiled) for compiled in (True, False))),
        *slow(*((make, False) for make in (encoder_decoder, segments, two_streams))),
    ],
)
def test_gradients_are_the_same(make, jit_compile):
    ours, theirs = (two_steps(make, remat, jit_compile) for remat in (True, False))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_frozen_weights_stay_to_the_bit_under_mixed_precision():
    config = EncoderConfig(*SHAPE, 2, causal=True, remat=True, **DROPOUTS)
    network = LanguageModel(config, dtype="mixed_bfloat16")
    network.build()
    [attention] = network.encoder.stack.blocks[0].mixers("tokens")
    attention.trainable = False
    before = attention.get_weights()

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(network.hidden_states({"token_ids": IDS}, training=True))
        return tape.gradient(loss, [variable.value for variable in network.trainable_variables])

    assert all(gradient is not None for gradient in step()[:-1])
    np.testing.assert_equal(attention.get_weights(), before)
