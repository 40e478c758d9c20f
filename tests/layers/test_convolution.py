import keras
import numpy as np
import pytest

from macaron_tf.layers import CausalConvolution, ConvolutionBlock
from tests.harness import normal, numpy_of, randomized


def by_the_equation(x, layer):
    """Computes causal convolution in float64 with the weights W = g v / |v| of each filter."""
    direction = numpy_of(layer.direction).astype("float64")
    kernel = numpy_of(layer.length) * direction / np.linalg.norm(direction, axis=(0, 1))
    padded = np.pad(x, [(0, 0), ((len(kernel) - 1) * layer.dilation, 0), (0, 0)])
    y = np.zeros((*x.shape[:2], kernel.shape[-1])) + numpy_of(layer.bias)
    for i, tap in enumerate(kernel):  # the last row is of the position itself
        y += padded[:, i * layer.dilation :][:, : x.shape[1]] @ tap
    return y


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (2, 1), (3, 4), (5, 2), (4, 16)])
def test_a_convolution_is_the_sum_over_its_taps(taps, dilation):
    x = normal(2, 13, 3)
    layer = randomized(CausalConvolution(4, taps, dilation), x.shape)
    np.testing.assert_allclose(numpy_of(layer(x)), by_the_equation(x, layer), atol=1e-5)


@pytest.mark.parametrize("filters", [5, 3])  # with and without the 1 x 1 convolution
def test_a_block_is_two_convolutions_and_the_skip(filters):
    x = h = skip = normal(2, 11, 3)
    block = randomized(ConvolutionBlock(filters, 3, dilation=2), x.shape)
    for convolution in block.convolutions:
        h = np.maximum(by_the_equation(h, convolution), 0)
    assert len(block.convolutions) == 2 and (block.skip is None) == (filters == 3)
    if block.skip is not None:
        skip = x @ numpy_of(block.skip.kernel) + numpy_of(block.skip.bias)
    np.testing.assert_allclose(numpy_of(block(x)), np.maximum(skip + h, 0), atol=1e-4)


def test_the_length_starts_as_the_direction_s():
    layer = CausalConvolution(4, 3)
    layer.build((None, None, 6))
    direction = numpy_of(layer.direction)
    np.testing.assert_allclose(numpy_of(layer.kernel), direction, atol=1e-6)
    assert np.abs(direction).max() <= 18**-0.5
    assert np.abs(direction).max() > 0.8 * 18**-0.5


def test_spatial_dropout_drops_a_channel_in_all_positions():
    keras.utils.set_random_seed(1)
    block = ConvolutionBlock(64, 1, dropout=0.5)
    block(normal(1, 9, 64))
    dropped = numpy_of(block.drops[0](np.ones((1, 9, 64), "float32"), training=True))
    assert (dropped == dropped[:, :1]).all()
    assert 10 < (dropped[0, 0] == 0).sum() < 54


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_a_thinned_sequence_gives_the_same_at_the_positions_it_has(length):
    full = normal(2, 4 * length, 3)
    layer = randomized(CausalConvolution(4, 3, 4), full.shape)
    thinned = numpy_of(layer.call_subsampled(full[:, 3::4], stride=2))
    np.testing.assert_allclose(thinned[:, ::-1], numpy_of(layer(full))[:, ::-1][:, ::8], atol=1e-5)
