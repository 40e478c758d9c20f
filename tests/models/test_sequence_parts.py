"""The parts of T5 and BART: caches, causality, what is tied, where matrices start."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers import MultiHeadAttention
from macaron_tf.models import EncoderDecoder, catalog
from tests.harness import check_saved, ids

SHAPES = {
    "vocab_size": 24,
    "hidden_dim": 16,
    "feed_forward_dim": 96,
    "num_heads": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
SYSTEMS = {
    "t5_tiny": {},
    "t5_1_1_small": {"head_dim": 6},
    "bart_tiny": {"max_length": 8, "logits_bias": True, "initializer_range": 0.3},
}


def small(system, **options) -> EncoderDecoder:
    """A tiny model with other than its first numbers in biases and scales too."""
    model = EncoderDecoder(catalog.config(system, **{**SHAPES, **SYSTEMS[system], **options}))
    model.build()
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.2, w.shape) for w in model.get_weights()])
    return model


def inputs():
    source, target = ids(3, 7), ids(3, 6, seed=1)
    source[-1, 4:] = 0
    target[:, 0] = 2
    return {"source": source, "target": target}


@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_cached_decoding_equals_uncached_and_no_future_leaks(system, block):
    model, batch = small(system, block=block), inputs()
    whole = np.asarray(model(batch))
    assert whole.std() > 0.1
    for room in (8, None):
        context, cache = model.init_decode(tf.constant(batch["source"]), 1, room)
        for t in range(6):
            step, cache = model.decode_step(batch["target"][:, t : t + 1], t, context, cache)
            np.testing.assert_allclose(step[:, 0], whole[:, t], atol=2e-5)
    changed = batch["target"].copy()
    changed[:, 4:] = 5
    np.testing.assert_allclose(
        np.asarray(model({**batch, "target": changed}))[:, :4], whole[:, :4], atol=1e-6
    )
    wide = {name: np.pad(value, ((0, 0), (0, 1))) for name, value in batch.items()}
    np.testing.assert_allclose(np.asarray(model(wide))[:, :6], whole, atol=2e-5)


def test_saved_models_are_the_ones_in_memory(tmp_path):
    for system in SYSTEMS:
        model = small(system)
        assert check_saved(model, inputs(), tmp_path).config == model.config


def test_encoder_looks_both_ways_and_the_table_is_one():
    model = small("t5_tiny")
    [encoder_bias], [decoder_bias] = model.encoder.biases, model.decoder.biases
    assert encoder_bias.bidirectional and not decoder_bias.bidirectional
    hidden = np.random.default_rng(0).normal(size=(1, 2, 16)).astype("float32")
    table = np.asarray(model.embedding.table)
    np.testing.assert_allclose(model.logits(hidden), hidden / 4 @ table.T, atol=1e-5)
    bart = small("bart_tiny")
    expected = hidden @ np.asarray(bart.embedding.table).T + np.asarray(bart.logits_bias)
    np.testing.assert_allclose(bart.logits(hidden), expected, atol=1e-5)
    sides = bart.source_embeddings, bart.target_embeddings
    assert all(side.tokens is bart.embedding for side in sides)
    assert sides[0].position_layer is not sides[1].position_layer
    with pytest.raises(ValueError, match="max_length=9 is more than the 8 positions"):
        bart.init_decode(inputs()["source"], 1, 9)


def test_unscaled_queries_start_narrower():
    layer = MultiHeadAttention(
        8, head_dim=16, scaled=False, use_bias=False, kernel_initializer="lecun_normal"
    )
    layer.build((None, None, 256))
    query, key, value = np.split(np.asarray(layer.query_key_value.kernel), 3, axis=1)
    np.testing.assert_allclose(
        [query.std(), key.std(), value.std()], [1 / 64, 1 / 16, 1 / 16], rtol=0.05
    )
