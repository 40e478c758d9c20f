"""Tests of heads, pooling, embeddings, positions and feed-forward networks."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from scipy.special import log_softmax, logsumexp

from macaron_tf import layers
from macaron_tf.layers import AdaptiveEmbedding, AdaptiveSoftmax, LayerMixture, SpanBoundaryHead
from macaron_tf.layers.heads import Pooling
from tests.harness import gelu, ids, int8_error, normal, numpy_of, randomized, symbolic, weights_of

REAL = {
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "cls": lambda x: x[0],
    "last": lambda x: x[-1],
}


@pytest.mark.parametrize("mode", REAL)
def test_padding_counts_for_nothing(mode):
    x, lengths = normal(3, 6, 8) - 3.0, np.array([6, 2, 1])
    mask = np.arange(6) < lengths[:, None]
    layer = Pooling(mode)
    expected = [REAL[mode](row[:length]) for row, length in zip(x, lengths, strict=True)]
    for filling in (0.0, 100.0, np.inf, np.nan):
        spoilt = np.where(mask[..., None], x, filling).astype("float32")
        found = numpy_of(layer(spoilt, mask=mask))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.shape == symbolic(layer, x).shape and symbolic(layer, x).dtype == "float32"
    everything = [REAL[mode](row) for row in x]
    np.testing.assert_allclose(numpy_of(layer(x)), everything, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "max", "last"])
def test_a_row_of_padding_is_zeros_and_has_a_gradient(mode):
    x, mask = tf.Variable(normal(2, 4, 8)), np.array([[True] * 4, [False] * 4])
    with tf.GradientTape() as tape:
        pooled = Pooling(mode)(x.value(), mask=mask)
        loss = tf.reduce_sum(pooled)
    assert (pooled.numpy()[1] == 0).all()
    gradient = tape.gradient(loss, x)
    assert np.isfinite(gradient).all() and (gradient.numpy()[1] == 0).all()
    assert np.abs(gradient.numpy()[0]).sum() > 0


def test_pooling_is_in_float32_whatever_comes():
    # 257 ones and a 256: bfloat16 has 8 bits, and would give another mean.
    x = np.ones((1, 258, 1), "float32")
    x[0, 0] = 256
    layer = Pooling("mean", dtype="mixed_bfloat16")
    found = layer(tf.cast(x, "bfloat16"))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, [[513 / 258]], rtol=1e-6)


def test_a_mixture_starts_as_the_mean_and_is_a_softmax():
    layer, layers = LayerMixture(), normal(2, 5, 3, 4)
    np.testing.assert_allclose(numpy_of(layer(layers)), layers.mean(2), atol=1e-6)
    scores, gamma = np.array([0.0, 1.0, -2.0], "float32"), np.float32(1.5)
    layer.set_weights([scores, gamma])
    weights = np.exp(scores) / np.exp(scores).sum()
    expected = 1.5 * np.einsum("bljd,j->bld", layers, weights)
    np.testing.assert_allclose(numpy_of(layer(layers)), expected, atol=1e-6)
    layer = LayerMixture(normalize=True)
    means, deviations = (getattr(layers, name)(-1, keepdims=True) for name in ("mean", "std"))
    found = numpy_of(layer(100 * layers + 7))
    np.testing.assert_allclose(found, ((layers - means) / deviations).mean(2), atol=1e-4)


POSITIONS = np.array([[0, 1, 2, 3, 9], [4, 0, 0, 1, 2]])


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def transformed(x, dense):
    return normalized(gelu(x @ numpy_of(dense.kernel) + numpy_of(dense.bias)))


def drawn(head):
    """Draws all weights of a head except LayerNorms from N(0, 1), so that no weight stays at 0."""
    for i, weight in enumerate(head.weights):
        if "norm" not in weight.path:
            weight.assign(normal(*weight.shape, seed=i))
    return head


def test_span_boundary_head_is_the_papers_formula():
    left, right, table = normal(2, 5, 8), normal(2, 5, 8, seed=1), normal(11, 6, seed=2)
    head = SpanBoundaryHead(11, max_span=5, position_dim=3)
    head(left, right, POSITIONS, table)
    drawn(head)
    positions = numpy_of(head.positions)[np.minimum(POSITIONS, 4)]  # position 9 has the last vector
    x = np.concatenate([left, right, positions], axis=-1)
    x = transformed(transformed(x, head.dense_0), head.dense_1)
    expected = x @ table.T + numpy_of(head.bias)
    np.testing.assert_allclose(numpy_of(head(left, right, POSITIONS, table)), expected, atol=1e-4)


def test_span_boundary_head_has_the_papers_sizes():
    head = SpanBoundaryHead(30_522)
    head.build((None, 768), (None, 768), (None,), (30_522, 768))
    assert head.positions.shape == (20, 200)
    assert head.dense_0.kernel.shape == (2 * 768 + 200, 768)


@pytest.mark.parametrize(("cutoffs", "divisor"), [((5,), 4), ((4, 9, 20), 2), ((6, 12), 1)])
def test_adaptive_softmax_is_the_paper_s_product_and_sums_to_one(cutoffs, divisor):
    x = normal(3, 5, 16)
    layer = randomized(AdaptiveSoftmax(30, cutoffs, divisor), x.shape, scale=1.0)
    found = numpy_of(layer(x))
    np.testing.assert_allclose(np.exp(found).sum(-1), 1.0, atol=1e-5)
    w = weights_of(layer)
    head = log_softmax(x @ w["head/kernel"] + w["head/bias"], axis=-1)
    expected = [head[..., : cutoffs[0]]]
    for i, (start, end) in enumerate(zip(cutoffs, (*cutoffs[1:], 30), strict=True), start=1):
        assert w[f"projection_{i}/kernel"].shape == (16, 16 // divisor**i)
        within = x @ w[f"projection_{i}/kernel"] @ w[f"cluster_{i}/kernel"] + w[f"cluster_{i}/bias"]
        assert within.shape[-1] == end - start
        cluster = head[..., cutoffs[0] + i - 1 : cutoffs[0] + i]
        expected.append(cluster + log_softmax(within, axis=-1))
    np.testing.assert_allclose(found, np.concatenate(expected, -1), atol=1e-4)


@pytest.mark.parametrize("divisor", [1, 2])
def test_tied_adaptive_softmax_is_a_full_softmax_by_the_embeddings(divisor):
    """A tied adaptive softmax equals one softmax over all tokens, computed in float64."""
    x, cutoffs = normal(3, 5, 16).astype("float64"), (4, 9, 20)
    tokens = AdaptiveEmbedding(30, 16, cutoffs, divisor, dtype="float64")
    randomized(tokens, ids(2, 3), scale=1.0)
    table = tokens.matrix("float64") if divisor == 1 else tokens.tables("float64")
    layer = AdaptiveSoftmax(30, cutoffs, divisor, tied=True, dtype="float64")
    layer.build(x.shape)
    drawn(layer)
    found = ops.convert_to_numpy(layer(x, table))
    own, w = weights_of(tokens), weights_of(layer)
    assert not any("kernel" in name or "table" in name for name in w if "cluster" in name)
    scores = []
    for i, (start, end) in enumerate(itertools.pairwise((0, *cutoffs, 30))):
        if divisor == 1:
            vectors, inner = ops.convert_to_numpy(table)[start:end], x
        else:
            vectors = own[f"cluster_{i}/table"]
            assert vectors.shape == (end - start, 16 // 2**i)
            back = own[f"projection_{i}/kernel"].T if i else w["projection/kernel"]
            inner = x @ back
        scores.append(inner @ vectors.T + w["bias"][start:end])
        if i == 0:
            entries = inner @ w["entries/kernel"] + w["entries/bias"]
        else:
            scores[i] += entries[..., i - 1 : i] - logsumexp(scores[i], axis=-1, keepdims=True)
    expected = log_softmax(np.concatenate(scores, -1), axis=-1)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_adaptive_embeddings_are_their_cluster_s_row_brought_to_the_width():
    layer = AdaptiveEmbedding(30, 16, (4, 9, 20), 2, scale=True)
    token_ids = np.array([[0, 3, 4, 19, 20, 29]])
    randomized(layer, token_ids, scale=1.0)
    w = weights_of(layer)
    rows = [(0, 0), (0, 3), (1, 0), (2, 10), (3, 0), (3, 9)]
    expected = [w[f"cluster_{i}/table"][r] @ w[f"projection_{i}/kernel"] for i, r in rows]
    np.testing.assert_allclose(numpy_of(layer(token_ids))[0] / 4, expected, atol=1e-5)
    np.testing.assert_allclose(numpy_of(layer.matrix("float32"))[token_ids[0]], expected, atol=1e-5)


def test_a_quantized_embedding_reads_and_scores_nearly_the_same(tmp_path):
    tokens, x = ids(2, 3), normal(2, 3, 16)
    layer = layers.TiedEmbedding(20, 16, name="tokens")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    vectors, logits = numpy_of(model(tokens)), numpy_of(layer.logits(x))
    model.quantize("int8")
    dtypes = {weight.name: weight.dtype for weight in layer.weights}
    assert dtypes == {"table": "int8", "table_scale": "float32"}
    for before, after in ((vectors, model(tokens)), (logits, layer.logits(x))):
        assert 0 < np.abs(numpy_of(after) - before).max() < int8_error(1) * np.std(before)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tokens), model(tokens))


def test_embedding_starts_at_the_width_of_the_recipe():
    layer = layers.TiedEmbedding(5_000, 64)
    layer.build()
    assert abs(np.asarray(layer.table).std() - 64**-0.5) < 2e-3


@pytest.mark.parametrize("layer", [layers.SinusoidalPositions(), layers.LearnedPositions(10)])
def test_positions_may_be_given(layer):
    x = normal(2, 6, 8)
    whole = np.asarray(layer(x))
    parts = [np.asarray(layer(x[:, t : t + 1], position_ids=np.array([[t]]))) for t in range(6)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)
