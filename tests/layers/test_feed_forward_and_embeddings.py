import keras
import numpy as np
import pytest

from macaron_tf import layers
from tests.harness import gelu, ids, int8_error, normal, numpy_of


def test_feed_forward_is_two_linear_maps_around_relu():
    x, layer = normal(2, 3, 8), layers.FeedForward(16)
    y = np.asarray(layer(x))
    w1, b1, w2, b2 = map(np.asarray, layer.weights)
    np.testing.assert_allclose(y, np.maximum(x @ w1 + b1, 0) @ w2 + b2, atol=1e-5)


def test_gated_feed_forward_multiplies_two_halves_and_has_no_bias():
    x, layer = normal(2, 3, 8), layers.FeedForward(16, gated=True, use_bias=False)
    y = np.asarray(layer(x))
    inner, outer = map(np.asarray, layer.weights)
    gate, value = np.split(x @ inner, 2, axis=-1)
    np.testing.assert_allclose(y, (np.maximum(gate, 0) * value) @ outer, atol=1e-5)


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


def test_embedding_reads_scaled_rows_and_scores_with_the_same_table():
    tokens, layer = ids(2, 3), layers.TiedEmbedding(20, 16)
    layer.build()
    table = np.asarray(layer.table)
    np.testing.assert_allclose(np.asarray(layer(tokens)), 4.0 * table[tokens], rtol=1e-6)
    x = normal(2, 3, 16)
    np.testing.assert_allclose(np.asarray(layer.logits(x)), x @ table.T, atol=1e-5)
    assert len(layer.weights) == 1


def test_embedding_starts_at_the_width_of_the_recipe():
    layer = layers.TiedEmbedding(5_000, 64)
    layer.build()
    assert abs(np.asarray(layer.table).std() - 64**-0.5) < 2e-3


X = np.linspace(-5, 5, 101, dtype="float32")


def test_gelu_is_exact_and_its_tanh_form_is_not():
    exact = gelu(X.astype("float64"))
    np.testing.assert_allclose(numpy_of(layers.activation("gelu")(X)), exact, atol=1e-6)
    error = np.abs(numpy_of(layers.activation("gelu_tanh")(X)) - exact).max()
    assert 1e-4 < error < 5e-4
    np.testing.assert_allclose(
        numpy_of(layers.gelu_tanh(X)), numpy_of(keras.ops.gelu(X, approximate=True)), atol=1e-6
    )


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids_are_section_3_5(layout):
    positions = layers.SinusoidalPositions(layout=layout)
    [encoding] = np.asarray(positions(np.zeros((1, 50, 8), "float32")))
    angles = np.arange(50)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    axis = 2 if layout == "interleaved" else 1
    expected = np.stack([np.sin(angles), np.cos(angles)], axis).reshape(50, 8)
    np.testing.assert_allclose(encoding, expected, atol=1e-5)


@pytest.mark.parametrize("layer", [layers.SinusoidalPositions(), layers.LearnedPositions(10)])
def test_positions_may_be_given(layer):
    x = normal(2, 6, 8)
    whole = np.asarray(layer(x))
    parts = [np.asarray(layer(x[:, t : t + 1], position_ids=np.array([[t]]))) for t in range(6)]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)
