import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers.heads import POOLINGS, Pooling
from tests.harness import normal, numpy_of

REAL = {
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "cls": lambda x: x[0],
    "last": lambda x: x[-1],
}


@pytest.mark.parametrize("mode", POOLINGS)
def test_padding_counts_for_nothing(mode):
    x, lengths = normal(3, 6, 8) - 3.0, np.array([6, 2, 1])
    mask = np.arange(6) < lengths[:, None]
    layer = Pooling(mode)
    expected = [REAL[mode](row[:length]) for row, length in zip(x, lengths, strict=True)]
    for filling in (0.0, 100.0, np.inf, np.nan):
        spoilt = np.where(mask[..., None], x, filling).astype("float32")
        found = numpy_of(layer(spoilt, mask=mask))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.shape == layer.compute_output_shape(x.shape)
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


def test_it_pools_in_float32_whatever_comes():
    # 257 numbers of 1 and one of 256: bfloat16 has 8 bits, and would give another mean.
    x = np.ones((1, 258, 1), "float32")
    x[0, 0] = 256
    layer = Pooling("mean", dtype="mixed_bfloat16")
    found = layer(tf.cast(x, "bfloat16"))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, [[513 / 258]], rtol=1e-6)


def test_it_is_serializable():
    layer = Pooling("max", name="pool")
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert copy.get_config() == layer.get_config() and copy.mode == "max"
    with pytest.raises(ValueError, match="mode='sum' is not one of"):
        Pooling("sum")
