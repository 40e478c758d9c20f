import numpy as np

from macaron_tf.layers import FeedForward, TiedEmbedding
from tests.harness import check_layer, ids, normal


def test_feed_forward_is_two_linear_maps_around_relu():
    x, layer = normal(2, 3, 8), FeedForward(16)
    y = np.asarray(layer(x))
    w1, b1, w2, b2 = map(np.asarray, layer.weights)
    np.testing.assert_allclose(y, np.maximum(x @ w1 + b1, 0) @ w2 + b2, atol=1e-5)


def test_gated_feed_forward_multiplies_two_halves_and_has_no_bias():
    x, layer = normal(2, 3, 8), FeedForward(16, gated=True, use_bias=False)
    y = np.asarray(layer(x))
    inner, outer = map(np.asarray, layer.weights)
    gate, value = np.split(x @ inner, 2, axis=-1)
    np.testing.assert_allclose(y, (np.maximum(gate, 0) * value) @ outer, atol=1e-5)


def test_embedding_reads_scaled_rows_and_scores_with_the_same_table():
    tokens, layer = ids(2, 3), TiedEmbedding(20, 16)
    layer.build()
    table = np.asarray(layer.table)
    np.testing.assert_allclose(np.asarray(layer(tokens)), 4.0 * table[tokens], rtol=1e-6)
    x = normal(2, 3, 16)
    np.testing.assert_allclose(np.asarray(layer.logits(x)), x @ table.T, atol=1e-5)
    assert len(layer.weights) == 1


def test_embedding_starts_at_the_width_of_the_recipe():
    layer = TiedEmbedding(5_000, 64)
    layer.build()
    assert abs(np.asarray(layer.table).std() - 64**-0.5) < 2e-3


def test_contract():
    check_layer(FeedForward(16, activation="gelu", activation_dropout=0.1), normal(2, 3, 8))
    check_layer(FeedForward(16, gated=True, output_initializer="zeros"), normal(2, 3, 8))
    check_layer(TiedEmbedding(20, 8, scale=False), ids(2, 3))
