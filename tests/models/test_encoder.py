"""Tests of the encoder: blocks, options, mixed block types, shared and factorized weights."""

import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from experiments import registry
from macaron_tf.layers.blocks import BLOCKS, MacaronBlock
from macaron_tf.layers.heads import Pooling
from macaron_tf.models import Encoder, EncoderConfig, EncoderTokenClassifier
from tests.harness import built, check_saved, gelu, ids, numpy_of, weights_of
from tests.toys.marks import slow

PARTS = {
    "shared": {"sharing": "all"},
    "shared_attention": {"sharing": "attention"},
    "factorized": {"embedding_dim": 6},
    "languages": {"num_languages": 3, "num_segments": 0},
    "sinusoidal": {"positions": "sinusoidal"},
    "without_positions": {"positions": "none", "norm": "pre"},
    "causal": {"causal": True},
    "relative_bias": {"relative_bias": "per_layer"},
}
ANY = [*BLOCKS, ("transformer", "gmlp", "swish_rnn")]
IDS = np.array([[2, 5, 6, 7, 3, 0, 0, 0], [2, 9, 8, 7, 6, 5, 4, 3]])


def tiny(**changes) -> EncoderConfig:
    shape = {"vocab_size": 16, "hidden_dim": 8, "feed_forward_dim": 24, "num_heads": 2}
    rest = {"num_layers": 3, "max_length": 10, "dropout": 0.0, "attention_dropout": 0.0}
    return EncoderConfig(**{**shape, **rest, "initializer_range": 0.3, **changes})


# Each block and each option once; `make test-slow` tests all pairs.
ONCE = [(ANY[i % len(ANY)], part) for i, part in enumerate(PARTS)]


@pytest.mark.parametrize(("block", "parts"), slow(*itertools.product(ANY, PARTS), but=ONCE))
def test_every_block_takes_every_part(block, parts, tmp_path):
    config = tiny(block=block, **PARTS[parts])
    encoder = built(Encoder, config)
    inputs = {"token_ids": tf.constant(IDS)}
    hidden = numpy_of(encoder(inputs))
    assert hidden.shape == (*IDS.shape, 8) and np.isfinite(hidden).all()
    # No real position attends to padding.
    shorter = numpy_of(encoder({"token_ids": tf.constant(IDS[:1, :5])}))
    np.testing.assert_allclose(hidden[:1, :5], shorter, atol=1e-5)
    # A later token has an influence unless the encoder is causal.
    changed = IDS.copy()
    changed[1, -1] = 9
    moved = np.abs(numpy_of(encoder({"token_ids": tf.constant(changed)})) - hidden)[1]
    if config.causal:
        assert moved[:-1].max() == 0
    elif set(config.blocks) - {"swish_rnn"}:
        assert moved[0].max() > 0
    again = EncoderConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config
    check_saved(encoder, inputs, tmp_path)


@pytest.mark.parametrize("block", slow(*BLOCKS, but=("transformer", "gmlp")))
def test_dynamic_lengths_need_no_new_trace(block):
    encoder, traces = built(Encoder, tiny(block=block, relative_bias="per_layer")), []

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)], autograph=False)
    def encode(tokens):
        traces.append(tokens.shape)
        return encoder({"token_ids": tokens})

    for length in (2, 4, 9):
        tokens = ids(2, length, vocab_size=16)
        np.testing.assert_allclose(encode(tokens), encoder({"token_ids": tokens}), atol=1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: [keras.layers.GlobalAveragePooling1D()],
        *slow(
            lambda: [keras.layers.LSTM(4)],
            lambda: [MacaronBlock(num_heads=2, feed_forward_dim=16), Pooling("max")],
        ),
    ],
)
def test_layers_behind_an_encoder_ignore_its_padding(make, tmp_path):
    parts = [built(Encoder, tiny(num_layers=1)), *make()]

    def applied(x):
        for part in parts:
            x = part(x)
        return x

    given = keras.Input((None,), dtype="int32")
    functional = keras.Model(given, applied(given))
    functional.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected = [numpy_of(functional(row[row > 0][None]))[0] for row in IDS]
    for model in (functional, keras.Sequential(parts), applied, loaded):
        np.testing.assert_allclose(numpy_of(model(IDS)), expected, atol=1e-5)
    other = np.where(IDS > 0, IDS, 9)
    inputs = {"input_ids": other, "attention_mask": (IDS > 0).astype("int32")}
    np.testing.assert_allclose(numpy_of(applied(inputs)), expected, atol=1e-5)


def test_keras_s_loss_leaves_out_the_padding_of_tags():
    model = built(EncoderTokenClassifier, tiny(num_layers=1), 3, 0.0)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = IDS % 3
    logits = numpy_of(model(IDS))[IDS > 0]
    expected = -np.log(scipy.special.softmax(logits, -1))[np.arange(13), labels[IDS > 0]].mean()
    np.testing.assert_allclose(model.evaluate(IDS, labels, verbose=0), expected, rtol=1e-5)


def test_step_sizes_that_differ_are_shared_among_equals():
    config = tiny(block="swish_rnn", rnn_step_sizes=(1, 2), sharing="all", num_layers=4)
    blocks = built(Encoder, config).stack.blocks
    weights = [[id(weight) for weight in block.weights] for block in blocks]
    assert weights[0] == weights[2] != weights[1] == weights[3]


def test_scaled_outputs_start_narrower_by_the_root_of_the_sublayers():
    config = EncoderConfig(20, 64, 256, 2, 4, scaled_outputs=True)
    block = built(Encoder, config).stack.blocks[0]
    first = np.asarray(block.feed_forward_1.sublayer.inner.kernel).std()
    last = np.asarray(block.feed_forward_1.sublayer.outer.kernel).std()
    # 4 layers with 2 sub-layers each; with 16,384 draws, 1% is two standard errors.
    assert abs(first / last / 8**0.5 - 1) < 0.03
    config = dataclasses.replace(config, scheme="3 x (tokens), channels")
    last = np.asarray(built(Encoder, config).stack.blocks[0].feed_forward_3.sublayer.outer.kernel)
    assert abs(first / last.std() / 16**0.5 - 1) < 0.03


def standardized(x):
    """Computes a LayerNorm without scale and offset."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_the_released_macaron_bert_is_the_one_of_its_code(tmp_path):
    """The embeddings and first layer of the released MacaronBERT agree with a NumPy version."""
    recipe = registry.load("macaron_bert_released").changed(model="macaron_bert_tiny")
    dry = {"dropout": 0.0, "attention_dropout": 0.0, "vocab_size": 24, "hidden_dim": 16}
    config = dataclasses.replace(recipe.model_config(24), **dry, feed_forward_dim=32)
    encoder = built(Encoder, config, noise=0.3)
    norms = [
        layer
        for layer in encoder._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    assert len(norms) == 3 * config.num_layers + 1 and not any(norm.weights for norm in norms)
    assert encoder.embeddings.layer_norm is None and config.norm == "pre"

    tokens = ids(2, 5)
    weights = weights_of(encoder)
    angles = np.arange(5)[:, None] * 10_000.0 ** (-np.arange(8) / 8)
    table = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(5, 16)
    x = weights["embeddings/tokens/table"][tokens] * 4 + table + weights["embeddings/segments"][0]
    embedded = encoder.embed({"token_ids": tokens})
    np.testing.assert_allclose(numpy_of(embedded), x, atol=1e-5)

    def feed_forward(x, number, function):
        name = f"stack/block_0/feed_forward_{number}/feed_forward"
        y = standardized(x) @ weights[f"{name}/inner/kernel"] + weights[f"{name}/inner/bias"]
        y = function(y) @ weights[f"{name}/outer/kernel"] + weights[f"{name}/outer/bias"]
        return x + 0.5 * y

    block = encoder.stack.blocks[0]
    x = feed_forward(x, 0, lambda y: np.maximum(y, 0))
    x = x + numpy_of(block.attention_1.sublayer(standardized(x).astype("float32")))
    x = feed_forward(x, 2, gelu)
    np.testing.assert_allclose(numpy_of(block(embedded)), x, atol=1e-4)
    check_saved(encoder, {"token_ids": tokens}, tmp_path)
