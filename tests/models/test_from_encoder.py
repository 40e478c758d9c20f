"""An encoder-decoder that begins as an encoder: the same numbers, in both of its stacks."""

import dataclasses

import numpy as np
import pytest

from macaron_tf.models import Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import PARTS, config_from_encoder, copy_embeddings
from tests.harness import ids, normal

BASE = EncoderDecoderConfig(99, 64, 64, 4, 3, 3, dropout=0.0)
SMALL = EncoderConfig(24, 16, 48, 2, 2, max_length=12, dropout=0.0, initializer_range=0.3)


def started(config, parts=PARTS, languages=(0, 0)):
    """An encoder whose weights are nowhere 0 or 1, and an encoder-decoder that begins as it."""
    encoder = Encoder(config)
    encoder.build()
    encoder.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(encoder.weights)])
    network = EncoderDecoder(config_from_encoder(config, BASE, parts))
    network.build()
    copy_embeddings(network, encoder, languages)
    if "encoder" in parts:
        network.encoder.copy_from(encoder.stack)
    if "decoder" in parts:
        network.decoder.copy_from(encoder.stack)
    return encoder, network


@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn", ("macaron", "swish_rnn")])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_it_encodes_what_the_encoder_encodes(block, positions):
    languages = {"num_segments": 0, "num_languages": 3}
    config = dataclasses.replace(SMALL, block=block, positions=positions, **languages)
    encoder, network = started(config, languages=(2, 1))
    source = ids(3, 7)
    source[-1, 4:] = 0
    expected = encoder({"token_ids": source, "language_ids": np.full_like(source, 2)})
    real = source != 0
    np.testing.assert_allclose(
        np.asarray(network.encode(source))[real], np.asarray(expected)[real], atol=1e-5
    )
    other = encoder({"token_ids": source, "language_ids": np.full_like(source, 1)})
    assert np.abs(np.asarray(network.encode(source)) - np.asarray(other)).max() > 0.01


def test_a_segment_of_bert_is_added_and_its_bias_is_the_encoders():
    config = dataclasses.replace(SMALL, norm="pre", relative_bias="per_layer", gated=True)
    encoder, network = started(config)
    source = ids(2, 7)
    expected = np.asarray(encoder({"token_ids": source}))
    np.testing.assert_allclose(np.asarray(network.encode(source)), expected, atol=1e-5)
    # A decoder's distances have other buckets: its bias stays drawn.
    theirs, drawn = encoder.stack.biases[0].weights[0], network.decoder.biases[0].weights[0]
    assert np.abs(np.asarray(theirs) - np.asarray(drawn)).max() > 0.1


def test_a_decoder_of_a_language_model_has_its_weights_and_its_bias():
    config = dataclasses.replace(SMALL, causal=True, relative_bias="shared", num_segments=0)
    encoder, network = started(config, ("decoder",))
    for name in ("attention_0", "feed_forward_1"):
        for mine, theirs in zip(network.decoder.blocks, encoder.stack.blocks, strict=True):
            for a, b in zip(
                getattr(mine, name).get_weights(), getattr(theirs, name).get_weights(), strict=True
            ):
                np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        network.decoder.biases[0].get_weights()[0], encoder.stack.biases[0].get_weights()[0]
    )
    assert network.config.num_encoder_layers == BASE.num_encoder_layers
    assert network.config.num_decoder_layers == config.num_layers


def test_a_pre_norm_decoder_without_its_new_attention_is_the_language_model():
    config = dataclasses.replace(SMALL, causal=True, norm="pre", num_segments=0, block="macaron")
    encoder, network = started(config, ("decoder",))
    for block in network.decoder.blocks:
        output = block.cross_attention_1.sublayer.output_projection
        output.set_weights([np.zeros_like(one) for one in output.get_weights()])
    target = ids(2, 6, seed=1)
    hidden = network.hidden_states({"source": ids(2, 5), "target": target})
    expected = encoder({"token_ids": target})
    np.testing.assert_allclose(np.asarray(hidden), np.asarray(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block": "gmlp"}, "block='gmlp': an encoder-decoder has blocks of transformer"),
        ({"embedding_dim": 8}, "embedding_dim=8: an encoder-decoder has embedding_dim=16 only"),
        ({"sharing": "all"}, "sharing='all'"),
        ({"positions": "transformer_xl"}, "positions='transformer_xl'"),
        ({"affine": False}, "affine=False"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    with pytest.raises(ValueError, match=reason):
        config_from_encoder(dataclasses.replace(SMALL, **change), BASE, PARTS)
