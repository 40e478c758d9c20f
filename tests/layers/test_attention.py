import numpy as np
import pytest

from macaron_tf.layers import MultiHeadAttention
from macaron_tf.layers.mixer import Context
from tests.harness import normal, numpy_of, softmax


def reference(layer, x, memory=None, mask=None):
    """Equation 1 of Vaswani et al. in a loop over heads; mask (T, S)."""
    width = layer.num_heads * (layer.head_dim or x.shape[-1] // layer.num_heads)
    if layer.cross:
        q = x @ np.asarray(layer.query.kernel) + np.asarray(layer.query.bias)
        kv = memory @ np.asarray(layer.key_value.kernel) + np.asarray(layer.key_value.bias)
        k, v = kv[..., :width], kv[..., width:]
    else:
        fused = layer.query_key_value
        qkv = x @ np.asarray(fused.kernel) + np.asarray(fused.bias)
        q, k, v = np.split(qkv, 3, axis=-1)
    d = width // layer.num_heads
    heads = []
    for h in range(layer.num_heads):
        part = slice(h * d, (h + 1) * d)
        scores = q[..., part] @ k[..., part].swapaxes(-1, -2) / np.sqrt(d)
        if mask is not None:
            scores = np.where(mask, scores, -1e9)
        heads.append(softmax(scores) @ v[..., part])
    out = layer.output_projection
    return np.concatenate(heads, -1) @ np.asarray(out.kernel) + np.asarray(out.bias)


@pytest.mark.parametrize("head_dim", [None, 5])
def test_self_attention_is_equation_1(head_dim):
    x, layer = normal(2, 6, 8), MultiHeadAttention(2, head_dim=head_dim)
    np.testing.assert_allclose(np.asarray(layer(x)), reference(layer, x), atol=1e-5)


def test_causal_attention_is_equation_1_under_a_triangle():
    x, layer = normal(2, 6, 8), MultiHeadAttention(4, causal=True)
    mask = np.tril(np.ones((6, 6), bool))
    np.testing.assert_allclose(np.asarray(layer(x)), reference(layer, x, mask=mask), atol=1e-5)


def test_cross_attention_is_equation_1():
    x, memory, layer = normal(2, 6, 8), normal(2, 4, 8, seed=1), MultiHeadAttention(2, cross=True)
    y = np.asarray(layer(x, memory))
    np.testing.assert_allclose(y, reference(layer, x, memory), atol=1e-5)


def test_masks_of_every_rank_say_the_same():
    x, layer = normal(2, 5, 8), MultiHeadAttention(2)
    keys = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    by_rank = [
        keys,
        np.broadcast_to(keys[:, None, :], (2, 5, 5)),
        np.broadcast_to(keys[:, None, None, :], (2, 2, 5, 5)),
    ]
    outputs = [np.asarray(layer(x, attention_mask=mask)) for mask in by_rank]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    with pytest.raises(ValueError, match="rank 2, 3 or 4"):
        layer(x, attention_mask=keys[0])


def test_a_row_with_nothing_to_attend_stays_finite():
    layer = MultiHeadAttention(2)
    y = layer(normal(1, 4, 8), attention_mask=np.zeros((1, 4), bool))
    assert np.isfinite(np.asarray(y)).all()


def test_beams_attend_the_memory_as_queries():
    x, memory, layer = normal(2, 3, 8), normal(2, 5, 8, seed=1), MultiHeadAttention(2, cross=True)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    whole = np.asarray(layer(x, memory, attention_mask=mask))
    # (B, K, D) -> (B K, D), as decoding has them
    y, _ = layer.mix(x.reshape(-1, 8), Context(memory_mask=mask), layer.project_memory(memory))
    np.testing.assert_allclose(np.asarray(y).reshape(x.shape), whole, atol=1e-6)


def test_dropout_acts_only_in_training():
    x, layer = normal(2, 6, 8), MultiHeadAttention(2, dropout=0.5)
    still = np.asarray(layer(x))
    np.testing.assert_array_equal(still, np.asarray(layer(x, training=False)))
    assert np.abs(numpy_of(layer(x, training=True)) - still).max() > 1e-3
