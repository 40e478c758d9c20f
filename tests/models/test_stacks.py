"""Stacks with schemes and with rematerialized blocks (gradient checkpointing)."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import Encoder, EncoderConfig, LanguageModel
from macaron_tf.models.config import differing_fields
from macaron_tf.models.segment_memory import KeepsMemory
from tests.harness import built, float32_sum_error, ids, numpy_of, rejects
from tests.toys import systems as toys
from tests.toys.marks import slow
from tests.toys.objectives import loss_and_gradients

MACARON = "channels/2, tokens, channels/2"
DRY = {"dropout": 0.0, "attention_dropout": 0.0}
TEXT = {"token_ids": ids(2, 6)}


def encoder(**options):
    return built(Encoder, EncoderConfig(24, 16, 32, 2, 2, **DRY, **options), noise=0.2)


def language_model(**options):
    config = EncoderConfig(24, 16, 32, 2, 2, causal=True, num_segments=0, **DRY, **options)
    return built(LanguageModel, config, noise=0.2)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (encoder, {"sharing": "all", "relative_bias": "per_layer", "norm_type": "rms"}),
        (language_model, {"positions": "transformer_xl"}),
    ],
)
def test_a_transformer_with_macarons_scheme_is_the_macaron_to_the_bit(make, options):
    """A Transformer with Macaron's scheme is bit-identical to a Macaron from initialization on."""
    macaron = make(block="macaron", **options)
    other = make(block="transformer", scheme=MACARON, **options)
    assert other.count_params() == macaron.count_params()
    for ours, theirs in zip(other.weights, macaron.weights, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(numpy_of(ours), numpy_of(theirs))
    np.testing.assert_array_equal(numpy_of(other(TEXT)), numpy_of(macaron(TEXT)))
    plain = make(block="transformer", **options)
    assert np.abs(numpy_of(plain(TEXT)) - numpy_of(macaron(TEXT))).max() > 0.1
    back = make(block="macaron", scheme="tokens, channels", **options)
    np.testing.assert_array_equal(numpy_of(back(TEXT)), numpy_of(plain(TEXT)))


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


def test_a_memory_or_a_branch_that_cannot_be_is_refused():
    branches = {"scheme": "tokens & channels", "sharing": "attention"}
    rejects("sharing='attention' excludes branches", encoder, **branches)
    rejects("scheme='tokens, memory' has 'memory' in an encoder", encoder, scheme="tokens, memory")


def two_steps(name: str, block: str, remat: bool, jit_compile: bool, changes: dict) -> list:
    """Returns the losses and gradients of two steps with dropout, and the final random states."""
    system = toys.SYSTEMS[name]
    keras.utils.set_random_seed(1)
    network, objective = system.network(block), system.objective
    config = dataclasses.replace(network.config, remat=remat, dropout=0.2, **changes)
    given = {**network.get_config(), "config": keras.saving.serialize_keras_object(config)}
    network = type(network).from_config(given)
    network.build()
    if isinstance(network, KeepsMemory):
        network.create_memory(toys.ROWS)
    if jit_compile:
        objective = dataclasses.replace(objective, skip_padding=False)
    batch = next(iter(system.batches()))
    step = tf.function(
        lambda: loss_and_gradients(objective, network, batch, training=True),
        autograph=False,
        jit_compile=jit_compile,
    )
    found = [array.numpy() for _ in range(2) for array in step()]
    return found + [variable.numpy() for variable in network.non_trainable_variables]


# Gradients flow to the encoder's output and the relative bias. Two branches share a norm.
BRANCHES = {"relative_bias": "shared", "scheme": "channels/2, tokens & channels/2"}


@pytest.mark.parametrize(
    ("name", "block", "jit_compile", "changes"),
    [
        ("gpt2", "transformer", False, {}),
        *slow(*(("gpt2", "swish_rnn", compiled, {}) for compiled in (True, False))),
        *slow(("translation", "transformer", False, BRANCHES)),
        *slow(*((name, "transformer", False, {}) for name in ("transformer_xl", "xlnet"))),
    ],
)
def test_recomputed_gradients_are_the_same(name, block, jit_compile, changes):
    ours, theirs = (two_steps(name, block, remat, jit_compile, changes) for remat in (True, False))
    for found, expected in zip(ours, theirs, strict=True):
        bound = float32_sum_error(96) * np.abs(expected).max()  # over a batch of 96 tokens
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=bound)


def test_frozen_weights_stay_to_the_bit_under_mixed_precision():
    config = EncoderConfig(24, 8, 24, 2, 2, causal=True, remat=True)
    network = LanguageModel(config, dtype="mixed_bfloat16")
    network.build()
    [attention] = network.encoder.stack.blocks[0].mixers("tokens")
    attention.trainable = False
    before = attention.get_weights()

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(network.hidden_states(TEXT, training=True))
        return tape.gradient(loss, [variable.value for variable in network.trainable_variables])

    assert all(gradient is not None for gradient in step()[:-1])
    np.testing.assert_equal(attention.get_weights(), before)
