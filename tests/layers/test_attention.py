"""Tests of attention: plain, relative, rotary and a user's own, and of recorded weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf.layers import (
    MultiHeadAttention,
    RelativePositionBias,
    RotaryAttention,
    SwishRNNBlock,
    TransformerBlock,
)
from macaron_tf.layers.mixer import Context
from macaron_tf.layers.relative_attention import RelativeAttention, Segment
from macaron_tf.layers.watching import watching
from macaron_tf.models import Encoder, EncoderConfig, Stack
from tests.harness import ids, normal, numpy_of, randomized, rejects, twin_of, weights_of
from tests.toys.objectives import V, tiny


def banded(window, shape=(2, 6, 8)):
    """Returns a causal sliding-window attention layer with random weights."""
    return randomized(MultiHeadAttention(2, causal=True, window=window), shape)


@pytest.mark.parametrize("padded", [0, 2])
@pytest.mark.parametrize("window", [1, 3, 5, 6])
def test_a_window_is_a_band_below_the_diagonal(window, padded):
    x, layer = normal(2, 6, 8), banded(window)
    distance = np.arange(6)[:, None] - np.arange(6)
    band = (distance >= 0) & (distance < window)
    real = np.arange(6) < np.array([[6], [6 - padded]])
    y, plain = numpy_of(layer(x, mask=real)), twin_of(layer, MultiHeadAttention(2), x.shape)
    expected = numpy_of(plain(x, attention_mask=band & real[:, None]))
    np.testing.assert_allclose(y[real], expected[real], atol=1e-5)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("room", [None, 2, 12])  # a growing cache, a short and a long one
@pytest.mark.parametrize("window", [1, 4])
def test_a_cache_of_the_window_gives_what_the_whole_text_gives(window, room):
    x = normal(2, room or 9, 8)
    length, layer = x.shape[1], banded(window)
    whole = numpy_of(layer(x))
    for parts in ([1] * length, [length], [length // 2, 1, length - length // 2 - 1]):
        cache, found, start = layer.init_cache(2, 1, room), [], 0
        for count in filter(None, parts):
            context = Context(index=start if room else None)
            y, cache = layer.mix(x[:, start : start + count], context, cache)
            found.append(numpy_of(y))
            start += count
        np.testing.assert_allclose(np.concatenate(found, axis=1), whole, atol=1e-6)
        assert cache[0].shape[3] == min(length, window)


def buckets(distance, **options):
    """Returns the layer's bucket for each distance from -`distance` to `distance`."""
    layer = RelativePositionBias(2, **options)
    layer.build()
    rows = np.arange(32, dtype="float32")
    layer.set_weights([np.stack([rows, -rows], axis=1)])
    bias = numpy_of(layer(query_length=distance + 1, key_length=distance + 1))
    np.testing.assert_array_equal(bias[0, 1], -bias[0, 0])
    # The first query sees distances from 0 to `distance`, and the last from -`distance` to 0.
    return np.concatenate([bias[0, 0, -1], bias[0, 0, 0, 1:]]).astype(int)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_hugging_faces(bidirectional):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-512, 513)
    expected = t5.T5Attention._relative_position_bucket(distances, bidirectional, 32, 128)
    np.testing.assert_array_equal(buckets(512, bidirectional=bidirectional), expected.numpy())


@pytest.mark.parametrize("relative_bias", ["shared", "per_layer"])
@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn"])
def test_it_reaches_the_scores_in_float32_under_bfloat16(block, relative_bias, monkeypatch):
    config = EncoderConfig(8, 6, 12, 2, 2, block=block, relative_bias=relative_bias)
    stack = Stack(config, 2, dtype="mixed_bfloat16")
    x = normal(2, 5, 6)
    stack.build(x.shape)
    for layer in stack.biases:
        layer.set_weights([1 + 2.0**-20 * np.arange(64, dtype="float32").reshape(32, 2)])
    expected = numpy_of(stack.biases[-1](query_length=5, key_length=5))
    assert len(np.unique(expected)) > 8  # equal in bfloat16
    added, attend = [], MultiHeadAttention._attend

    def seen(self, query, key, value, mask, bias, *rest):
        assert query.dtype == key.dtype == value.dtype == tf.bfloat16
        added.append(numpy_of(bias))
        return attend(self, query, key, value, mask, bias, *rest)

    monkeypatch.setattr(MultiHeadAttention, "_attend", seen)
    y = stack(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert len(added) == 2
    for bias in added:
        assert bias.dtype == np.float32
        np.testing.assert_array_equal(bias, expected)


H, D = 2, 8
SIZES = {"num_heads": H, "feed_forward_dim": 192}


def test_no_gradient_flows_into_the_past():
    x, past = tf.constant(normal(1, 4, D)), tf.constant(normal(1, 4, D, seed=1))
    block = SwishRNNBlock(**SIZES, causal=True, relative=True)
    block(x)
    held = block.init_memory(1, 4)
    start = tf.constant(normal(*held[1].shape, seed=2))
    with tf.GradientTape() as tape:
        tape.watch([x, past, start])
        y, new = block.mix(x, Context(), [Segment(past, np.ones((1, 4), bool)), start])
        loss = tf.reduce_sum(y**2) + tf.reduce_sum(new[0].hidden) + tf.reduce_sum(new[1])
    gradients = tape.gradient(loss, [x, past, start])
    assert gradients[0] is not None and gradients[1] is None and gradients[2] is None


def test_a_memory_that_is_too_short_forgets():
    x = normal(1, 12, D)
    config = EncoderConfig(8, D, 192, H, 1, positions="transformer_xl")
    stack = Stack(config, 1, causal=True)
    stack.build((None, None, D))
    _, past = stack.mix(x[:, :6], Context(), stack.init_memory(1, 2))
    y, _ = stack.mix(x[:, 6:], Context(), past)
    np.testing.assert_allclose(numpy_of(y)[:, 0], numpy_of(stack(x[:, 4:7]))[:, -1], atol=1e-5)


def test_odd_heads_and_uneven_groups_are_refused():
    rejects("head_dim=3 must be even", RotaryAttention(2, 3).build, (1, 5, 6))
    rejects("num_heads=4 is not a multiple of", MultiHeadAttention, 4, num_kv_heads=3)


class Fading(MultiHeadAttention):
    """Attention with its own rotation, whose scores fall by 0.1 per position of distance."""

    def rotate(self, query, key, positions):
        scale = ops.cos(0.3 * ops.cast(positions, query.dtype))[..., None]
        return query * scale, key * (2 - scale)

    def scores(self, query, key, context, key_positions):
        distance = ops.expand_dims(context.positions, -1) - ops.expand_dims(key_positions, -2)
        faded = 0.1 * ops.cast(ops.abs(distance), query.dtype)
        return super().scores(query, key, context, key_positions) - faded


class FadingBlock(TransformerBlock):
    attention = Fading


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("room", [None, 8])
def test_an_attention_of_one_s_own_is_right_in_every_cache(window, room):
    options = {"num_heads": 2, "feed_forward_dim": 8, "num_kv_heads": 1}
    block = FadingBlock(**options, causal=True, attention_window=window)
    block, x = randomized(block, (2, 7, 6)), normal(2, 7, 6)
    whole = numpy_of(block(x))
    state = block.init_cache(1, 2, room)  # two texts, as beams of one row
    first = Context(positions=np.arange(3), index=None if room is None else 0)
    y, state = block.mix(x[:, :3], first, state)
    found = [*np.moveaxis(numpy_of(y), 1, 0)]
    for t in range(3, 7):
        step = Context(positions=np.array([t]), index=None if room is None else t)
        y, state = block.mix(x[:, t], step, state)
        found.append(numpy_of(y))
    np.testing.assert_allclose(np.stack(found, axis=1), whole, atol=1e-5)


def test_an_attention_of_one_s_own_is_right_in_a_cache_that_is_only_read():
    attention = Fading(2, causal=True, num_kv_heads=1)
    attention, x = randomized(attention, (1, 6, 6)), normal(1, 6, 6)
    whole = numpy_of(attention(x))
    _, cache = attention.mix(x[:, :3], Context(index=0), attention.init_cache(1, 1, 8))
    held = Context(index=3, cache_mask=np.arange(8) < 3)
    found, new = attention.mix(x[:, 3:], held, cache)
    np.testing.assert_allclose(found, whole[:, 3:], atol=1e-5)
    assert new[0].shape == (1, 1, 1, 3, 3)
    one, _ = attention.mix(x[:, 3], held, cache)
    np.testing.assert_allclose(one, whole[:, 3], atol=1e-5)


def test_a_block_with_another_attention_refuses_rotary_positions():
    options = {"num_heads": 2, "feed_forward_dim": 8, "positions": "rotary"}
    rejects("needs a RotaryAttention", FadingBlock, **options)


def by_weights(layer, weights, keys):
    """Computes attention's output from weights `(B, H, T, S)` and `keys`, `(B, S, D)`."""
    w = weights_of(layer)
    name = "key_value" if "key_value/kernel" in w else "query_key_value"
    values = (keys @ w[f"{name}/kernel"] + w[f"{name}/bias"])[..., -D:]
    values = values.reshape(*keys.shape[:2], H, -1).swapaxes(1, 2)  # `(B, H, S, d)`
    y = (numpy_of(weights) @ values).swapaxes(1, 2).reshape(len(keys), -1, D)
    return y @ w["output/kernel"] + w["output/bias"]


@pytest.mark.parametrize("kind", [MultiHeadAttention, RelativeAttention])
@pytest.mark.parametrize("causal", [True, False])
def test_the_weights_give_the_output(kind, causal):
    x, mask = normal(2, 5, D), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    layer = randomized(kind(H, causal=causal, dropout=0.5), x.shape)
    with watching() as kept:
        y = layer(x, mask=mask)
    layer(x)  # not recorded
    [(noted, weights)] = kept
    assert noted is layer and weights.dtype == "float32"
    np.testing.assert_allclose(by_weights(layer, weights, x), numpy_of(y), atol=1e-5)
    assert not numpy_of(weights)[1, ..., 3:].any()
    assert causal == (not np.triu(numpy_of(weights), 1).any())


def test_attention_to_a_memory_and_one_within_a_gated_mlp():
    x, memory = normal(2, 5, D), normal(2, 3, D, seed=1)
    layer = randomized(MultiHeadAttention(H, cross=True), x.shape, memory.shape)
    with watching() as kept:
        y = layer(x, memory)
    np.testing.assert_allclose(by_weights(layer, kept[0][1], memory), numpy_of(y), atol=1e-5)
    for block, heads in {"amlp": [1], "gmlp": []}.items():
        network = Encoder(tiny(block=block, tiny_attention_dim=4))
        with watching() as kept:
            network(ids(2, 6, vocab_size=V))
        assert [weights.shape for _, weights in kept] == [(2, n, 6, 6) for n in heads]


def test_a_watch_within_another_sees_its_own_layers_alone():
    layer, x = MultiHeadAttention(H), normal(1, 2, D)
    with watching() as outer:
        with watching() as inner:
            layer(x)
        assert len(inner) == 1 and not outer
        layer(x)
    assert len(outer) == 1


@pytest.mark.parametrize("kind", [MultiHeadAttention, RelativeAttention])
def test_the_papers_scale_divides_by_the_root_of_the_width(kind):
    """Lu et al. 2019 divide by sqrt(D): a factor sqrt(d / D) on queries and on their biases."""
    x, (layer, plain) = normal(2, 5, 8), (kind(4, causal=True, **o) for o in ({"scale_dim": 8}, {}))
    plain = twin_of(randomized(layer, x.shape), plain, x.shape)
    assert np.abs(numpy_of(layer(x)) - numpy_of(plain(x))).max() > 1e-3
    for variable in plain.weights:
        value = np.array(variable)
        if "/query" in variable.path:  # alone, or before keys and values
            value[..., :8] *= 0.5
        elif variable.name in ("content_bias", "distance_bias"):
            value *= 0.5
        variable.assign(value)
    np.testing.assert_allclose(numpy_of(layer(x)), numpy_of(plain(x)), atol=1e-5)
