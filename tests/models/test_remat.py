"""Rematerialized blocks (gradient checkpointing) have the gradients of ordinary blocks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderConfig, EncoderDecoder, EncoderDecoderConfig, LanguageModel
from macaron_tf.models.segment_memory import SegmentLanguageModel, TwoStreamModel
from tests.toys.marks import slow

SHAPE = (16, 8, 24, 2)
DROPOUTS = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 3, 0, 0]], np.int32)


def language_model(**options):
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
    return language_model(block="swish_rnn", **options)


@pytest.mark.parametrize(
    ("make", "jit_compile"),
    [
        (language_model, False),
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
