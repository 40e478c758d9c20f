"""Tests of rotary positions, grouped-query attention, and a user's attention subclass."""

import numpy as np
import pytest
from keras import ops

from macaron_tf.layers import MultiHeadAttention, RotaryAttention, TransformerBlock
from macaron_tf.layers.mixer import Context
from tests.harness import check_layer, normal, numpy_of, randomized, rejects, softmax

H, K, D, T = 4, 2, 6, 5  # heads, key heads, head width, tokens
BASE = 50.0


def by_the_equations(layer, x, positions):
    """Computes causal rotary attention (Su et al. 2021, eq. 14 to 16) in float64."""
    query, key_value, output = (np.asarray(w, "float64") for w in layer.get_weights())
    query = (x @ query).reshape(*x.shape[:2], H, D)
    key, value = np.moveaxis((x @ key_value).reshape(*x.shape[:2], 2, K, D), 2, 0)

    def turned(vectors):
        pairs = vectors[..., : D // 2] + 1j * vectors[..., D // 2 :]
        return pairs * np.exp(1j * positions[..., None, None] * BASE ** (-np.arange(0, D, 2) / D))

    key, value = (np.repeat(part, H // K, axis=2) for part in (turned(key), value))
    scores = np.einsum("bthd,bshd->bhts", turned(query), key.conj()).real / np.sqrt(D)
    weights = softmax(np.where(np.tri(T, dtype=bool), scores, -np.inf))
    return np.einsum("bhts,bshd->bthd", weights, value).reshape(*x.shape[:2], H * D) @ output


def rotary(**options):
    options = {"use_bias": False, "causal": True, "num_kv_heads": K, **options}
    return RotaryAttention(H, D, BASE, **options)


def test_it_follows_the_equations_at_any_positions():
    layer, x = randomized(rotary(), (2, T, 12)), normal(2, T, 12)
    assert [w.shape for w in layer.weights] == [(12, H * D), (12, 2 * K * D), (H * D, 12)]
    np.testing.assert_allclose(layer(x), by_the_equations(layer, x, np.arange(T)), atol=1e-5)
    restarted = np.array([[0, 1, 2, 3, 4], [7, 8, 0, 1, 2]])  # two texts in row 1
    found = layer.mix(x, Context(positions=restarted))[0]
    np.testing.assert_allclose(found, by_the_equations(layer, x, restarted), atol=1e-5)
    check_layer(rotary(), x)


def test_odd_heads_and_uneven_groups_are_refused():
    rejects("head_dim=3 must be even", RotaryAttention(2, 3).build, (1, T, 6))
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
