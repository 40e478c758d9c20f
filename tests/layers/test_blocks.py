"""Tests of the Euler steps of sub-layers, and of the blocks that consist of Euler steps."""

import keras
import numpy as np
import pytest

from macaron_tf import layers
from macaron_tf.models import Encoder, EncoderConfig
from tests.harness import built, check_saved, ids, normal, randomized, rejects


def layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize(("norm", "step_size"), [("pre", 1.0), ("pre", 0.5), ("post", 0.5)])
def test_a_residual_is_one_euler_step(norm, step_size):
    x, dense = normal(2, 3, 8), keras.layers.Dense(8)
    dense.build(x.shape)
    y = np.asarray(layers.Residual(dense, step_size=step_size, norm=norm)(x))
    if norm == "pre":
        expected = x + step_size * np.asarray(dense(layer_norm(x)))
    else:
        expected = layer_norm(x + step_size * np.asarray(dense(x)))
    np.testing.assert_allclose(y, expected, atol=1e-6 if norm == "pre" else 1e-5)


def test_dropout_comes_before_the_step_size_and_spares_the_skip():
    x = normal(4, 50, 8)
    identity = layers.Residual(keras.layers.Identity(), step_size=0.5, dropout=0.25, norm="pre")
    change = np.asarray(identity(x, training=True)) - x
    scale = np.divide(change, layer_norm(x))
    kept = np.abs(scale) > 1e-3
    np.testing.assert_allclose(scale[kept], 0.5 / 0.75, rtol=1e-2)
    assert 0.70 < kept.mean() < 0.80
    np.testing.assert_allclose(np.asarray(identity(x)) - x, 0.5 * layer_norm(x), atol=1e-5)


OPTIONS = {"num_heads": 2, "feed_forward_dim": 16}
DECODER = {**OPTIONS, "causal": True, "cross_attention": True}
ATTENTIVE = ["macaron", "swish_rnn", "transformer"]


POST = {**OPTIONS, "norm": "post", "rnn_step_size": 2}
TOKENS, HALF = ("tokens", 1.0), ("channels", 0.5)


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        # Equations 17-19 of Lu et al.; the decoder has the order of footnote 3.
        (layers.MacaronBlock, OPTIONS, [HALF, TOKENS, HALF]),
        (layers.MacaronBlock, DECODER, [HALF, TOKENS, ("memory", 1.0), HALF]),
        (layers.TransformerBlock, OPTIONS, [TOKENS, ("channels", 1.0)]),
        (layers.SwishRNNBlock, POST, [TOKENS, ("channels", 1.0)]),
    ],
)
def test_a_block_is_its_euler_steps(kind, options, steps):
    x, memory, block = normal(2, 5, 8), normal(2, 3, 8, seed=1), kind(**options)
    y = np.asarray(block(x, memory=memory) if block.cross_attention else block(x))
    assert [(operator, residual.step_size) for operator, residual in block.sublayers] == steps
    h = x
    for operator, residual in block.sublayers:
        given, norm = [memory] if operator == "memory" else [], residual.layer_norm
        if options is POST:
            h = norm(h + residual.step_size * np.asarray(residual.sublayer(h, *given)))
        else:
            h = h + residual.step_size * np.asarray(residual.sublayer(norm(h), *given))
        if operator == "channels" and kind is layers.MacaronBlock:
            assert residual.sublayer.config.feed_forward_dim == 8
        if operator == "channels" and options is POST:
            assert isinstance(residual.sublayer, layers.SwishRNN)
            assert residual.sublayer.step_size == 2
    np.testing.assert_allclose(y, np.asarray(h), atol=1e-5)


@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_no_real_position_sees_padding(name):
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    # Weights are redrawn, because a gMLP's spatial weights start near 0.
    x, block = normal(2, 4, 8), randomized(layers.block_class(name)(**OPTIONS), (2, 4, 8))
    y, changed = np.asarray(block(x, mask=mask)), x.copy()
    changed[~mask] -= 2.0
    np.testing.assert_array_equal(np.asarray(block(changed, mask=mask))[mask], y[mask])
    if name in ATTENTIVE:  # a mask of attention says the same
        given = np.asarray(block(x, attention_mask=mask))
        np.testing.assert_array_equal(given[mask], y[mask])
    assert np.abs(np.asarray(block(changed))[0, 0] - y[0, 0]).max() > 1e-3


@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_masks_of_an_embedding_reach_the_token_mixer(name):
    """The token mixer uses the mask that Keras attaches to embeddings, also with a memory."""
    tokens = np.array([[5, 6, 0, 0], [7, 8, 9, 4]])
    embedding = keras.layers.Embedding(12, 8, mask_zero=True)
    x, memory = embedding(tokens), normal(2, 3, 8)
    encoder, decoder = layers.block_class(name)(**OPTIONS), layers.block_class(name)(**DECODER)
    plain = np.asarray(x)
    real = tokens != 0
    expected = np.asarray(encoder(plain, mask=real))
    np.testing.assert_array_equal(np.asarray(encoder(x))[real], expected[real])
    expected = np.asarray(decoder(plain, memory=memory, mask=real))
    np.testing.assert_array_equal(np.asarray(decoder(x, memory=memory))[real], expected[real])


@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_a_memory_is_attended_but_for_its_padding(name):
    x, memory, block = normal(2, 3, 8), normal(2, 4, 8, seed=1), layers.block_class(name)(**DECODER)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    y = np.asarray(block(x, memory=memory, memory_mask=mask))
    hidden, seen = memory.copy(), memory.copy()
    hidden[0, 2:] -= 2.0
    seen[0, :2] -= 2.0
    np.testing.assert_array_equal(block(x, memory=hidden, memory_mask=mask), y)
    assert np.abs(np.asarray(block(x, memory=seen, memory_mask=mask))[0] - y[0]).max() > 1e-3


SHARED = {"attention": ("tokens",), "feed_forward": ("channels",), "all": ("tokens", "channels")}


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("name", sorted(layers.BLOCKS))
def test_shared_sublayers_are_one(name, sharing, tmp_path):
    dropouts = {"dropout": 0.1, "activation_dropout": 0.1}
    config = EncoderConfig(20, 8, 16, 2, 2, block=name, sharing=sharing, **dropouts)
    encoder = built(Encoder, config, noise=0.5)
    stack, [first, second] = encoder.stack, encoder.stack.blocks
    kept = []
    for (operator, ours), (_, theirs) in zip(second.sublayers, first.sublayers, strict=True):
        assert (ours is theirs) == (operator in SHARED[sharing])
        if ours is not theirs:
            kept.append(ours)
    own = sum(residual.count_params() for residual in kept)
    assert stack.count_params() == first.count_params() + own
    # Dropout seeds are counted once too, so no replaced sub-layer is left.
    count = len(first.variables) + sum(len(residual.variables) for residual in kept)
    assert len(stack.variables) == len({id(variable) for variable in stack.variables}) == count
    x = normal(2, 5, 8)
    y = np.asarray(stack(x))
    np.testing.assert_array_equal(y, second(first(x)))
    if sharing == "all":
        np.testing.assert_array_equal(y, first(first(x)))
    check_saved(encoder, {"token_ids": ids(2, 5)}, tmp_path)


def test_what_cannot_be_shared_is_refused():
    block = layers.TransformerBlock(**OPTIONS)
    wider = layers.TransformerBlock(num_heads=2, feed_forward_dim=32)
    rejects("differs between", block.share, wider, ("channels",))
    block.share(wider, ("tokens",))
    rejects("differs between", block.share, layers.block_class("gmlp")(**OPTIONS))
    rejects("operators='attention'", block.share, wider, ("attention",))
