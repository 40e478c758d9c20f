"""Recorded attention weights reproduce the layer's output."""

import numpy as np
import pytest

from macaron_tf.layers import MultiHeadAttention
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.watching import watching
from macaron_tf.models import Encoder
from tests.harness import ids, normal, numpy_of, randomized, weights_of
from tests.toys.objectives import V, tiny

H, D = 2, 8


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
