import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers import MultiHeadAttention, RelativePositionBias
from macaron_tf.models import EncoderConfig, Stack
from tests.harness import normal, numpy_of


def buckets(distance, **options):
    """The bucket of every distance from -`distance` to `distance`, as the layer looks them up."""
    layer = RelativePositionBias(2, **options)
    layer.build()
    rows = np.arange(layer.num_buckets, dtype="float32")
    layer.set_weights([np.stack([rows, -rows], axis=1)])
    bias = numpy_of(layer(query_length=distance + 1, key_length=distance + 1))
    np.testing.assert_array_equal(bias[0, 1], -bias[0, 0])
    # The first query sees 0 to distance, the last one -distance to 0.
    return np.concatenate([bias[0, 0, -1], bias[0, 0, 0, 1:]]).astype(int)


# T5's buckets of the distances 0 to 512, (first distance, bucket): a bucket each at first, then
# edges at 8 x 16^(n/8) for 8 buckets, or at 16 x 8^(n/16) for 16.
BIDIRECTIONAL = [(8, 8), (12, 9), (16, 10), (23, 11), (32, 12), (46, 13), (64, 14), (91, 15)]
CAUSAL = [
    *[(16, 16), (19, 17), (21, 18), (24, 19), (27, 20), (31, 21), (35, 22), (40, 23)],
    *[(46, 24), (52, 25), (59, 26), (67, 27), (77, 28), (87, 29), (99, 30), (113, 31)],
]


def table(edges):
    """The bucket of 0, 1, ..., 512."""
    starts = [(n, n) for n in range(edges[0][0])] + edges
    found = np.zeros(513, int)
    for start, bucket in starts:
        found[start:] = bucket
    return found


def test_buckets_to_both_sides_are_t5s():
    found = buckets(512)
    np.testing.assert_array_equal(found[512::-1], table(BIDIRECTIONAL))
    # Keys after the query have the upper 16 buckets.
    np.testing.assert_array_equal(found[513:], 16 + table(BIDIRECTIONAL)[1:])


def test_causal_buckets_are_t5s():
    found = buckets(512, bidirectional=False)
    np.testing.assert_array_equal(found[512::-1], table(CAUSAL))
    np.testing.assert_array_equal(found[513:], 0)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 256), (8, 20)])
def test_buckets_are_hugging_faces(bidirectional, num_buckets, max_distance):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    expected = t5.T5Attention._relative_position_bucket(
        torch.arange(-512, 513),
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    found = buckets(
        512, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )
    np.testing.assert_array_equal(found, expected.numpy())


def test_fewer_queries_are_the_last_positions():
    layer = RelativePositionBias(3, initializer="random_normal")
    layer.build()
    whole = numpy_of(layer(query_length=9, key_length=9))
    assert whole.shape == (1, 3, 9, 9)
    np.testing.assert_array_equal(layer(query_length=2, key_length=9), whole[:, :, -2:])
    lengths = {"query_length": tf.constant(2), "key_length": tf.constant(9)}
    found = tf.function(lambda: layer(**lengths))()
    np.testing.assert_array_equal(found, whole[:, :, -2:])


def test_a_row_of_the_table_learns_from_its_distances_alone():
    layer = RelativePositionBias(1)
    layer.build()
    weights = normal(5, 5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(query_length=5, key_length=5)[0, 0] * weights)
    gradient = numpy_of(tape.gradient(loss, layer.table.value))[:, 0]
    expected = np.zeros(32)
    for distance in range(-4, 5):
        row = -distance if distance <= 0 else 16 + distance
        expected[row] = np.trace(weights, offset=distance)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_it_starts_at_0_in_float32_and_is_made_again_from_its_config():
    layer = RelativePositionBias(2, 16, 40, bidirectional=False, dtype="mixed_bfloat16")
    layer.build()
    bias = layer(query_length=3, key_length=3)
    assert keras.backend.standardize_dtype(bias.dtype) == layer.table.dtype == "float32"
    np.testing.assert_array_equal(bias, 0)
    config = layer.get_config()
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert copy.get_config() == config
    for name in set(config) - {"name", "trainable", "dtype"}:
        assert hasattr(layer, name)


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
    assert len(np.unique(expected)) > 8  # all the same in bfloat16
    added, attend = [], MultiHeadAttention._attend

    def seen(self, query, key, value, mask, bias, training):
        assert {keras.backend.standardize_dtype(t.dtype) for t in (query, key, value)} == {
            "bfloat16"
        }
        added.append(numpy_of(bias))
        return attend(self, query, key, value, mask, bias, training)

    monkeypatch.setattr(MultiHeadAttention, "_attend", seen)
    y = stack(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert len(added) == 2
    for bias in added:
        assert bias.dtype == np.float32
        np.testing.assert_array_equal(bias, expected)
