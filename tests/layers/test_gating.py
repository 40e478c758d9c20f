import math

import numpy as np
import pytest
from scipy import linalg

from macaron_tf.layers import GatedMLP, SpatialGating
from tests.harness import gelu, normal, numpy_of, randomized, softmax, weights_of

KINDS = {
    "gmlp": {},
    "amlp": {"tiny_attention_dim": 4},
    "toeplitz": {"toeplitz": True},
    "causal": {"causal": True, "tiny_attention_dim": 4},
}


def by_the_equations(layer, x, mask):
    """Computes gMLP in float64, as in Liu et al. 2021, section 2.

    Tiny attention is included if the layer has it.
    """
    w = weights_of(layer)
    z = gelu(x @ w["inner/kernel"] + w["inner/bias"])
    u, v = np.split(z, 2, axis=-1)
    v = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + layer.epsilon)
    v = (v * w["gating/norm/gamma"] + w["gating/norm/beta"]) * mask[:, :, None]
    kernel, length = w["gating/kernel"], x.shape[1]
    if layer.toeplitz:  # column: distances 0, -1, ...; row: 0, 1, ...
        middle = layer.max_length - 1
        kernel = linalg.toeplitz(kernel[middle::-1], kernel[middle:])
    kernel = kernel[:length, :length]
    seen = np.broadcast_to(mask[:, None, :], (len(x), length, length))
    if layer.causal:
        kernel, seen = np.tril(kernel), np.tril(seen)
    gate = kernel @ v + w["gating/bias"][:length, None]
    if layer.tiny_attention_dim:
        path = "tiny_attention/"
        qkv = x @ w[path + "query_key_value/kernel"] + w[path + "query_key_value/bias"]
        query, key, value = np.split(qkv, 3, axis=-1)
        scores = query @ key.swapaxes(1, 2) / math.sqrt(layer.tiny_attention_dim)
        attended = softmax(np.where(seen, scores, -1e30)) @ value
        gate = gate + attended @ w[path + "output/kernel"] + w[path + "output/bias"]
    return (u * gate) @ w["outer/kernel"] + w["outer/bias"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 6, 9])
def test_it_is_the_paper_s_equations(kind, length):
    layer = randomized(GatedMLP(12, 9, **KINDS[kind]), (None, None, 8))
    x, mask = normal(2, length, 8), np.ones((2, length), bool)
    mask[0, length // 2 + 1 :] = False
    expected = by_the_equations(layer, x, mask)
    y = numpy_of(layer(x, mask=mask))
    np.testing.assert_allclose(y[mask], expected[mask], rtol=1e-4, atol=1e-5)
    whole = by_the_equations(layer, x, np.ones_like(mask))
    np.testing.assert_allclose(numpy_of(layer(x)), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("length", [4, 64])
def test_the_gate_is_open_at_first(toeplitz, length):
    layer, z = SpatialGating(length, toeplitz=toeplitz), normal(2, length, 16)
    np.testing.assert_allclose(numpy_of(layer(z)), z[..., :8], rtol=5e-3)
    assert np.abs(numpy_of(layer.kernel)).max() > 0
    np.testing.assert_array_equal(layer.bias, np.ones(length))
