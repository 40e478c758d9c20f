"""Euler steps of sub-layers, and the blocks that they make."""

import keras
import numpy as np
import pytest

from macaron_tf.layers import (
    BLOCKS,
    FeedForward,
    MacaronBlock,
    Residual,
    TransformerBlock,
    block_class,
)
from tests.harness import normal, randomized


def layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("step_size", [1.0, 0.5])
def test_pre_norm_is_one_euler_step(step_size):
    x = normal(2, 3, 8)
    dense = keras.layers.Dense(8)
    dense.build(x.shape)
    y = np.asarray(Residual(dense, step_size=step_size, norm="pre")(x))
    expected = x + step_size * np.asarray(dense(layer_norm(x)))
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_post_norm_normalizes_the_sum():
    x = normal(2, 3, 8)
    dense = keras.layers.Dense(8)
    dense.build(x.shape)
    y = np.asarray(Residual(dense, step_size=0.5, norm="post")(x))
    np.testing.assert_allclose(y, layer_norm(x + 0.5 * np.asarray(dense(x))), atol=1e-5)


def test_the_half_step_is_exactly_a_half():
    """Powers of two are exact in floating point, so equality is to the bit."""
    x = normal(2, 3, 8)
    full = Residual(FeedForward(16), norm="pre")
    full(x)
    half = Residual(full.sublayer, step_size=0.5, norm="pre")
    change = np.asarray(full.sublayer(full.layer_norm(x)))
    np.testing.assert_array_equal(np.asarray(half(x)), x + np.float32(0.5) * change)


def test_dropout_comes_before_the_step_size_and_spares_the_skip():
    x = normal(4, 50, 8)
    identity = Residual(keras.layers.Identity(), step_size=0.5, dropout=0.25, norm="pre")
    change = np.asarray(identity(x, training=True)) - x
    scale = np.divide(change, layer_norm(x))
    kept = np.abs(scale) > 1e-3
    np.testing.assert_allclose(scale[kept], 0.5 / 0.75, rtol=1e-2)
    assert 0.70 < kept.mean() < 0.80
    np.testing.assert_allclose(np.asarray(identity(x)) - x, 0.5 * layer_norm(x), atol=1e-5)


def test_without_affine_parameters_only_the_sublayer_has_weights():
    layer = Residual(FeedForward(16), affine=False)
    layer(normal(2, 3, 8))
    assert len(layer.weights) == 4


OPTIONS = {"num_heads": 2, "feed_forward_dim": 16}
DECODER = {**OPTIONS, "causal": True, "cross_attention": True}
ATTENTIVE = ["macaron", "swish_rnn", "transformer"]


def residuals(block):
    return [residual for _, residual in block.sublayers]


@pytest.mark.parametrize("options", [OPTIONS, DECODER], ids=["encoder", "decoder"])
def test_macaron_is_half_full_half(options):
    """Equations 17-19 of Lu et al.; in the decoder the order of footnote 3."""
    block = MacaronBlock(**options)
    kinds = [kind for kind, _ in block.sublayers]
    steps = [residual.step_size for residual in residuals(block)]
    if block.cross_attention:
        assert kinds == ["channels", "tokens", "memory", "channels"]
        assert steps == [0.5, 1.0, 1.0, 0.5]
    else:
        assert kinds == ["channels", "tokens", "channels"]
        assert steps == [0.5, 1.0, 0.5]
    widths = [r.sublayer.config.feed_forward_dim for k, r in block.sublayers if k == "channels"]
    assert widths == [8, 8]


def test_macaron_encoder_block_is_equations_17_to_19():
    x, block = normal(2, 5, 8), MacaronBlock(**OPTIONS)
    y = np.asarray(block(x))
    first, attention, second = residuals(block)
    h = x + 0.5 * np.asarray(first.sublayer(first.layer_norm(x)))
    h = h + np.asarray(attention.sublayer(attention.layer_norm(h)))
    h = h + 0.5 * np.asarray(second.sublayer(second.layer_norm(h)))
    np.testing.assert_allclose(y, h, atol=1e-5)


def test_transformer_block_is_attention_then_feed_forward():
    x, block = normal(2, 5, 8), TransformerBlock(**OPTIONS)
    y = np.asarray(block(x))
    attention, feed_forward = residuals(block)
    h = x + np.asarray(attention.sublayer(attention.layer_norm(x)))
    h = h + np.asarray(feed_forward.sublayer(feed_forward.layer_norm(h)))
    np.testing.assert_allclose(y, h, atol=1e-5)


@pytest.mark.parametrize("name", ATTENTIVE)
def test_padding_mask_of_keras_counts(name):
    x, block = normal(2, 4, 8), block_class(name)(**OPTIONS)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    given = np.asarray(block(x, attention_mask=mask))
    # A recurrence passes over padding, so only real positions compare.
    np.testing.assert_array_equal(np.asarray(block(x, mask=mask))[mask], given[mask])


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_no_real_position_sees_padding(name):
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    # Drawn anew, for a gMLP's weights between positions start near 0.
    x, block = normal(2, 4, 8), randomized(block_class(name)(**OPTIONS), (2, 4, 8))
    y, changed = np.asarray(block(x, mask=mask)), x.copy()
    changed[~mask] -= 2.0
    np.testing.assert_array_equal(np.asarray(block(changed, mask=mask))[mask], y[mask])
    assert np.abs(np.asarray(block(changed))[0, 0] - y[0, 0]).max() > 1e-3


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_masks_of_an_embedding_reach_the_token_mixer(name):
    """Keras hands the mask on by itself, also where a memory is given too."""
    tokens = np.array([[5, 6, 0, 0], [7, 8, 9, 4]])
    embedding = keras.layers.Embedding(12, 8, mask_zero=True)
    x, memory = embedding(tokens), normal(2, 3, 8)
    encoder, decoder = block_class(name)(**OPTIONS), block_class(name)(**DECODER)
    plain = np.asarray(x)
    real = tokens != 0
    expected = np.asarray(encoder(plain, mask=real))
    np.testing.assert_array_equal(np.asarray(encoder(x))[real], expected[real])
    expected = np.asarray(decoder(plain, memory=memory, mask=real))
    np.testing.assert_array_equal(np.asarray(decoder(x, memory=memory))[real], expected[real])


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_memory_is_attended_but_for_its_padding(name):
    x, memory, block = normal(2, 3, 8), normal(2, 4, 8, seed=1), block_class(name)(**DECODER)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    y = np.asarray(block(x, memory=memory, memory_mask=mask))
    hidden, seen = memory.copy(), memory.copy()
    hidden[0, 2:] -= 2.0
    seen[0, :2] -= 2.0
    np.testing.assert_array_equal(block(x, memory=hidden, memory_mask=mask), y)
    assert np.abs(np.asarray(block(x, memory=seen, memory_mask=mask))[0] - y[0]).max() > 1e-3


class Pair(keras.Model):
    """Two blocks in a row, the second of which uses the first one's sub-layers."""

    def __init__(self, name, operators, options):
        super().__init__()
        self.first = block_class(name)(**options, name="first")
        self.second = block_class(name)(**options, name="second")
        self.second.share(self.first, operators)

    def build(self, x_shape):
        self.first.build(x_shape)
        self.second.build(x_shape)
        self.built = True

    def call(self, x, mask=None, training=None):
        x = self.first(x, mask=mask, training=training)
        return self.second(x, mask=mask, training=training)


@pytest.mark.parametrize(
    "operators", [("tokens",), ("channels",), ("tokens", "channels")], ids="+".join
)
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_shared_sublayers_are_one(name, operators, tmp_path):
    options = {**OPTIONS, "dropout": 0.1, "activation_dropout": 0.1}
    x, pair = normal(2, 5, 8), Pair(name, operators, options)
    pair.build(x.shape)
    sizes = {"tokens": 0, "channels": 0}
    for (operator, ours), (_, theirs) in zip(
        pair.second.sublayers, pair.first.sublayers, strict=True
    ):
        assert (ours is theirs) == (operator in operators)
        sizes[operator] += ours.count_params()
    own = sum(size for operator, size in sizes.items() if operator not in operators)
    assert pair.count_params() == sum(sizes.values()) + own
    # The seeds of dropout are counted once too: none is left of the sub-layers thrown away.
    copies = len({id(v) for v in pair.variables})
    alone = block_class(name)(**options)
    alone.build(x.shape)
    kept = sum(len(r.variables) for o, r in alone.sublayers if o not in operators)
    assert len(pair.variables) == copies == len(alone.variables) + kept

    pair.set_weights([0.5 * normal(*w.shape, seed=i) for i, w in enumerate(pair.get_weights())])
    y = np.asarray(pair(x))
    np.testing.assert_array_equal(y, pair.second(pair.first(x)))
    if kept == 0:
        np.testing.assert_array_equal(y, pair.first(pair.first(x)))
    pair.save_weights(tmp_path / "pair.weights.h5")
    loaded = Pair(name, operators, options)
    loaded.build(x.shape)
    loaded.load_weights(tmp_path / "pair.weights.h5")
    np.testing.assert_array_equal(loaded(x), y)


def test_what_cannot_be_shared_is_refused():
    block = TransformerBlock(**OPTIONS)
    with pytest.raises(ValueError, match="other options"):
        block.share(TransformerBlock(num_heads=2, feed_forward_dim=32), ("channels",))
    block.share(TransformerBlock(num_heads=2, feed_forward_dim=32), ("tokens",))
    with pytest.raises(ValueError, match="other options"):
        block.share(block_class("gmlp")(**OPTIONS))
    with pytest.raises(ValueError, match="operators='attention'"):
        block.share(TransformerBlock(**OPTIONS), ("attention",))
    block.build((None, None, 8))
    with pytest.raises(ValueError, match="before build"):
        block.share(TransformerBlock(**OPTIONS))
