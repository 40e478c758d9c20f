import keras
import numpy as np
import pytest

from macaron_tf.layers import FeedForward, Residual
from tests.harness import normal


def layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("step_size", [1.0, 0.5])
def test_pre_norm_is_one_euler_step(step_size):
    x = normal(2, 3, 8)
    dense = keras.layers.Dense(8)
    dense.build(x.shape)
    y = np.asarray(Residual(dense, step_size=step_size, norm="pre")(x))
    expected = x + step_size * np.asarray(dense(layer_norm(x)))
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_post_norm_normalizes_the_sum():
    x = normal(2, 3, 8)
    dense = keras.layers.Dense(8)
    dense.build(x.shape)
    y = np.asarray(Residual(dense, step_size=0.5, norm="post")(x))
    np.testing.assert_allclose(y, layer_norm(x + 0.5 * np.asarray(dense(x))), atol=1e-5)


def test_the_half_step_is_exactly_a_half():
    """Powers of two are exact in floating point, so equality is to the bit."""
    x = normal(2, 3, 8)
    full = Residual(FeedForward(16), norm="pre")
    full(x)
    half = Residual(full.sublayer, step_size=0.5, norm="pre")
    change = np.asarray(full.sublayer(full.layer_norm(x)))
    np.testing.assert_array_equal(np.asarray(half(x)), x + np.float32(0.5) * change)


def test_dropout_comes_before_the_step_size_and_spares_the_skip():
    x = normal(4, 50, 8)
    identity = Residual(keras.layers.Identity(), step_size=0.5, dropout=0.25, norm="pre")
    change = np.asarray(identity(x, training=True)) - x
    scale = np.divide(change, layer_norm(x))
    kept = np.abs(scale) > 1e-3
    np.testing.assert_allclose(scale[kept], 0.5 / 0.75, rtol=1e-2)
    assert 0.70 < kept.mean() < 0.80
    np.testing.assert_allclose(np.asarray(identity(x)) - x, 0.5 * layer_norm(x), atol=1e-5)


def test_without_affine_parameters_only_the_sublayer_has_weights():
    layer = Residual(FeedForward(16), affine=False)
    layer(normal(2, 3, 8))
    assert len(layer.weights) == 4
