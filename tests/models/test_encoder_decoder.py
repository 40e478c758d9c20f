"""Tests of encoder-decoders for translation, T5 and BART: caches, causality and tied weights."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf import models
from macaron_tf.layers import MultiHeadAttention
from tests.harness import built, ids
from tests.toys.marks import slow, thorough

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
    "transformer_tiny": {},
    "macaron_tiny": {},
    "t5_tiny": {},
    "t5_1_1_small": {"head_dim": 6},
    "bart_tiny": {"max_length": 8, "logits_bias": True, "initializer_range": 0.3},
}
BLOCKS = ("transformer", "macaron", "swish_rnn")
MODERN = {
    **{"positions": "rotary", "rotary_base": 100.0, "num_kv_heads": 1, "use_bias": False},
    **{"norm_type": "rms", "gated": True, "activation": "silu"},
}
OWN_SOURCE = {"num_source_layers": 2, "source_vocab_size": 40, "num_decoder_layers": 1}
# Cases whose mechanisms quicker cases have, too.
LATER = [
    ("bart_tiny", {"block": "swish_rnn"}),
    ("macaron_tiny", {**MODERN, "norm": "pre", "block": "swish_rnn", "gated": False}),
]
LAST = [
    *((system, {"block": block}) for system in SYSTEMS for block in BLOCKS),
    ("transformer_tiny", {"norm": "post"}),
    ("transformer_tiny", {"scheme": "tokens/2, channels, tokens/2"}),
    ("transformer_tiny", {"positions": "rotary", "num_kv_heads": 1, "rotary_dim": 4}),
    ("transformer_tiny", {"scheme": "tokens/2 by heun, channels by midpoint & tokens/2 again"}),
    ("transformer_tiny", {"positions": "alibi", "block": "macaron"}),
    ("t5_tiny", {"scheme": "2 x (tokens/2, channels/2)", "relative_bias": "per_layer"}),
]


def small(system="transformer_tiny", **options) -> models.EncoderDecoder:
    """Returns a tiny model with noise in all weights, so that no bias is 0 and no scale is 1."""
    config = models.catalog.config(system, **{**SHAPES, **SYSTEMS[system], **options})
    return built(models.EncoderDecoder, config, noise=0.2)


def inputs():
    source, target = ids(3, 7), ids(3, 6, seed=1)
    source[-1, 4:] = 0
    target[:, 0] = 2
    return {"source": source, "target": target}


@pytest.mark.parametrize("options", [{}, OWN_SOURCE])
def test_masks_by_the_names_of_other_libraries(options):
    model, given = small(**options), inputs()
    real = (given["source"] > 0).astype("int32")
    other = {"input_ids": np.where(real, given["source"], 9), "decoder_input_ids": given["target"]}
    for mask in (
        {"attention_mask": real, "decoder_attention_mask": np.ones((3, 6))},
        {"encoder_padding_mask": real.astype(bool)},
        {"attention_mask": np.tile(real[:, None], (1, 7, 1))},
    ):
        np.testing.assert_allclose(model({**other, **mask}), model(given), atol=1e-5)
    changed = {**given, "target": np.where(np.arange(6) == 1, 9, given["target"])}
    hidden = {"decoder_attention_mask": np.tile(np.arange(6) != 1, (3, 1))}
    found, moved = (np.asarray(model({**one, **hidden})) for one in (given, changed))
    np.testing.assert_allclose(found[:, 2:], moved[:, 2:], atol=1e-6)


@pytest.mark.parametrize(
    ("system", "options"),
    [
        *((system, {}) for system in ("transformer_tiny", "t5_tiny", "bart_tiny")),
        (
            "transformer_tiny",
            {**OWN_SOURCE, "scheme": "channels, memory/2 by heun, tokens, memory/2 again"},
        ),
        ("macaron_tiny", MODERN),
        ("bart_tiny", OWN_SOURCE),
        *thorough(*LATER),
        *slow(*LAST),
    ],
)
def test_cached_decoding_equals_uncached_and_no_future_leaks(system, options):
    model, batch = small(system, **options), inputs()
    called = tf.function(lambda batch: model(batch), autograph=False)
    whole = np.asarray(called(batch))
    assert whole.std() > 0.1
    for room in (8, None):
        context, cache = model.init_decode(tf.constant(batch["source"]), 2, room)
        for t in range(6):
            both = np.repeat(batch["target"][:, t : t + 1], 2, axis=1)
            step, cache = model.decode_step(both, t, context, cache)
            for beam in range(2):
                np.testing.assert_allclose(step[:, beam], whole[:, t], atol=2e-5)
    for t in range(1, 6):
        changed = batch["target"].copy()
        changed[:, t:] = 5
        found = np.asarray(called({**batch, "target": changed}))
        np.testing.assert_allclose(found[:, :t], whole[:, :t], atol=1e-6)
    # Padded rows and columns change nothing, and stay finite.
    wide = {name: np.pad(value, ((0, 2), (0, 1))) for name, value in batch.items()}
    found = np.asarray(model(wide))
    np.testing.assert_allclose(found[:3, :6], whole, atol=2e-5)
    assert np.isfinite(found).all()


def test_unscaled_queries_start_narrower():
    layer = MultiHeadAttention(
        8, head_dim=16, scaled=False, use_bias=False, kernel_initializer="lecun_normal"
    )
    layer.build((None, None, 256))
    query, key, value = np.split(np.asarray(layer.query_key_value.kernel), 3, axis=1)
    found = [query.std(), key.std(), value.std()]
    np.testing.assert_allclose(found, [1 / 64, 1 / 16, 1 / 16], rtol=0.05)


def test_relative_biases_start_as_t5_s_own_code_draws_them():
    """T5's initial relative biases are normal with standard deviation D^-1/2, as in T5's own code.

    The relative biases of an `Encoder` are initially 0. A bias table of T5 has 32 buckets and 64
    heads in this test.
    """
    wide = {"num_heads": 64, "head_dim": 1, "vocab_size": 8, "relative_bias": "per_layer"}
    config = models.catalog.config("t5_tiny", **{**SHAPES, **wide})
    model = built(models.EncoderDecoder, config)
    tables = [np.asarray(b.table) for b in (*model.encoder.biases, *model.decoder.biases)]
    assert len(tables) == 4
    for table in tables:
        np.testing.assert_allclose([table.std(), table.mean()], [0.25, 0.0], atol=0.03)
        assert np.abs(table).max() > 0.6  # not truncated at two deviations
    assert np.abs(tables[0] - tables[1]).max() > 0.1
    bert = built(models.Encoder, models.EncoderConfig(8, 16, 16, 2, 1, relative_bias="shared"))
    assert not np.asarray(bert.stack.biases[0].table).any()


@pytest.mark.parametrize(
    ("system", "block"),
    [
        ("bart_tiny", "transformer"),
        *thorough(("t5_tiny", "swish_rnn")),
        *slow(("bart_tiny", "macaron"), ("bart_tiny", "swish_rnn")),
        *slow(("t5_tiny", "transformer"), ("t5_tiny", "macaron")),
    ],
)
def test_a_source_of_another_vocabulary_has_an_encoder_of_its_own(system, block):
    model = small(system, block=block, **OWN_SOURCE)
    source, target = ids(2, 7, vocab_size=40), ids(2, 5)
    source[-1, 4:] = 0
    read = model.source_encoder({"token_ids": source})
    x = model.source_embeddings(source, vectors=read)
    expected = model.encoder(x, mask=ops.not_equal(source, 0))
    np.testing.assert_allclose(np.asarray(model.encode(source)), np.asarray(expected), atol=1e-6)
    assert tuple(model({"source": source, "target": target}).shape) == (2, 5, 24)


def test_the_source_encoder_is_all_that_is_added():
    plain, more = (small("bart_tiny", **{**OWN_SOURCE, "num_source_layers": n}) for n in (0, 2))
    assert plain.source_encoder is None
    own = {id(weight) for weight in more.source_encoder.weights}
    rest = [tuple(weight.shape) for weight in more.weights if id(weight) not in own]
    assert rest == [tuple(weight.shape) for weight in plain.weights]
    assert len(own) == len(more.weights) - len(plain.weights)


@pytest.mark.parametrize("block", ["transformer", "macaron"])
def test_the_first_stage_is_the_papers(block):
    model = small("bart_tiny", block=block, **OWN_SOURCE)
    trained = models.encoder_decoder.first_stage_variables(model)
    rest = [variable for variable in trained if "source_encoder" not in variable.path]
    assert len(model.source_encoder.trainable_variables) == len(trained) - len(rest)
    tables, (kernel, bias) = rest[:2], rest[2:]
    assert [tuple(table.shape) for table in tables] == [(8, 16), (8, 16)]
    assert tuple(kernel.shape) == (16, 48) and tuple(bias.shape) == (48,)
    first, second = ({id(v) for v in model.encoder.blocks[n].trainable_variables} for n in range(2))
    assert {id(kernel), id(bias)} <= first - second
