"""Tests of models with rotary positions, such as Llama and ModernBERT."""

import numpy as np
import pytest

from macaron_tf.layers import MultiHeadAttention, RotaryAttention
from macaron_tf.layers.packing import packing_scope
from macaron_tf.models import Encoder, EncoderDecoder, catalog
from macaron_tf.models.pretraining import generator_config
from tests.harness import built, ids, numpy_of

V = 40
SIZES = {"vocab_size": V, "hidden_dim": 16, "feed_forward_dim": 24, "num_heads": 4}
ROTARY = {**SIZES, "positions": "rotary", "num_kv_heads": 2, "dropout": 0.0}


@pytest.mark.parametrize("block", ["macaron", "swish_rnn", "amlp"])
def test_any_attention_turns(block):
    """Shifting all rotary positions changes nothing; scaling the positions changes outputs."""
    options = {**ROTARY, "num_kv_heads": None if block == "amlp" else 2, "num_layers": 2}
    plain = dict(block=block, num_segments=0, toeplitz=True, max_length=16, activation="gelu")
    model = built(Encoder, catalog.config("bert_tiny", **options, **plain), noise=0.2)
    given = ids(2, 7, vocab_size=V)
    given[1, 5:] = 0
    expected = numpy_of(model({"token_ids": given}))
    places = np.tile(np.arange(7), (2, 1))
    moved = numpy_of(model({"token_ids": given, "position_ids": places + 30}))
    np.testing.assert_allclose(moved, expected, atol=2e-5)
    turned = numpy_of(model({"token_ids": given, "position_ids": places * 3}))
    assert np.abs(turned - expected).max() > 1e-3
    with packing_scope():
        packed = numpy_of(model({"token_ids": given}))
    real = given != 0
    np.testing.assert_allclose(packed[real], expected[real], atol=2e-5)


def test_attention_to_a_source_is_not_turned():
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = built(EncoderDecoder, catalog.config("transformer_tiny", **ROTARY, **sizes))
    [encoder], [decoder] = model.encoder.blocks, model.decoder.blocks
    turning = [type(one) for one in (*encoder.mixers("tokens"), *decoder.mixers("tokens"))]
    assert turning == [RotaryAttention] * 2
    assert [type(one) for one in decoder.mixers("memory")] == [MultiHeadAttention]


def test_a_generator_shares_its_fewer_heads_of_keys():
    config = catalog.config("bert_tiny", **{**ROTARY, "num_heads": 12, "hidden_dim": 96})
    generator = generator_config(config)
    assert (generator.num_heads, generator.num_kv_heads) == (3, 1)


def config(**options):
    return catalog.config("modern_bert_tiny", **{**SIZES, "attention_windows": (0, 4), **options})


def test_layers_with_the_same_window_share_their_weights_but_for_the_first():
    model = Encoder(config(num_layers=5, sharing="all"))
    blocks = model.stack.blocks
    kinds = [[*map(id, block.mixers())] for block in blocks]
    assert kinds[1] == kinds[3] != kinds[2] == kinds[4]
    assert kinds[0] not in kinds[1:]
