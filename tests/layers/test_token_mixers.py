"""Layers that mix tokens agree with their papers' equations, computed in NumPy."""

import math

import keras
import numpy as np
import pytest
from scipy import linalg

from macaron_tf.layers import (
    CausalConvolution,
    ConvolutionBlock,
    GatedMLP,
    SpatialGating,
    SwishRNN,
)
from macaron_tf.layers.mixer import Context
from macaron_tf.models import EncoderConfig, Stack
from tests.harness import gelu, normal, numpy_of, randomized, softmax, weights_of
from tests.toys.marks import slow
from tests.toys.swish import LENGTHS, by_the_equations


def reference(layer, x):
    """Computes the SwishRNN layer, equations 2 to 4 of Lei et al. 2022, in float64."""
    w = weights_of(layer)
    vectors = [w[name] for name in ("alpha", "beta", "state_bias", "gate_bias")]
    h = by_the_equations(x @ w["inner/kernel"], vectors, layer.step_size, layer.gate)
    return h @ w["outer/kernel"] + w["outer/bias"]


@pytest.mark.parametrize(
    "options", [*({"step_size": n} for n in (1, 2, 3, 4)), {"gate": "sigmoid"}], ids=str
)
def test_it_is_equations_2_to_4(options):
    layer = randomized(SwishRNN(10, **options), (2, 67, 6))
    for length in LENGTHS:
        x = normal(2, length, 6, seed=length)
        # Outputs exceed 10, with a float32 error of 1e-6.
        np.testing.assert_allclose(
            numpy_of(layer(x)), reference(layer, x), rtol=1e-6, atol=1e-5, err_msg=f"L={length}"
        )


def test_it_starts_with_the_paper_s_values():
    layer = SwishRNN(4)
    layer.build((None, None, 6))
    np.testing.assert_array_equal(layer.alpha, np.ones(4))
    for bias in (layer.beta, layer.state_bias, layer.gate_bias, layer.outer.bias):
        np.testing.assert_array_equal(bias, np.zeros(bias.shape))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", *slow("float32")])
def test_24_layers_start_finite_and_of_unit_scale(dtype):
    keras.utils.set_random_seed(1)
    config = EncoderConfig(
        8, 64, 192, 2, 24, block="swish_rnn", rnn_step_sizes=(1, 2, 4), relative_bias="per_layer"
    )
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    stack = Stack(config, 24, kernel_initializer=initializer, dtype=dtype)
    assert [block.rnn_step_size for block in stack.blocks[:4]] == [1, 2, 4, 1]
    x = normal(2, 33, 64)
    y = numpy_of(stack(x))
    assert np.isfinite(y).all()
    np.testing.assert_allclose(np.square(y).mean(-1), 1.0, atol=0.05)
    # The last LayerNorm would hide a recurrence that explodes or vanishes, because it is small
    # compared with its input x.
    for block in stack.blocks:
        inner = np.square(numpy_of(block.feed_forward_1.sublayer(y))).mean() ** 0.5
        assert 1e-4 < inner < 1.0


def test_a_state_with_documents_is_refused():
    layer, x = randomized(SwishRNN(10), (2, 9, 6)), normal(2, 9, 6)
    documents = np.zeros((2, 9), "int32")
    with pytest.raises(ValueError, match="takes either a state or several documents"):
        layer.mix(x, Context(documents=documents), np.zeros((2, 1, 10), "float32"))


def convolved(x, layer):
    """Computes causal convolution by Keras, with the weights W = g v / |v| of each filter."""
    direction = numpy_of(layer.direction)
    kernel = numpy_of(layer.length) * direction / np.linalg.norm(direction, axis=(0, 1))
    padded = np.pad(x, [(0, 0), ((len(kernel) - 1) * layer.dilation, 0), (0, 0)])
    y = keras.ops.conv(padded, kernel, dilation_rate=layer.dilation)
    return numpy_of(y) + numpy_of(layer.bias)


@pytest.mark.parametrize("filters", [5, 3])  # with and without the 1 x 1 convolution
def test_a_block_is_two_convolutions_and_the_skip(filters):
    x = h = skip = normal(2, 11, 3)
    block = randomized(ConvolutionBlock(filters, 3, dilation=2), x.shape)
    for convolution in block.convolutions:
        h = np.maximum(convolved(h, convolution), 0)
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


KINDS = {
    "gmlp": {},
    "amlp": {"tiny_attention_dim": 4},
    "toeplitz": {"toeplitz": True},
    "causal": {"causal": True, "tiny_attention_dim": 4},
}


def gated(layer, x, mask):
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
    expected = gated(layer, x, mask)
    y = numpy_of(layer(x, mask=mask))
    np.testing.assert_allclose(y[mask], expected[mask], rtol=1e-4, atol=1e-5)
    whole = gated(layer, x, np.ones_like(mask))
    np.testing.assert_allclose(numpy_of(layer(x)), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("length", [4, 64])
def test_the_gate_is_open_at_first(toeplitz, length):
    layer, z = SpatialGating(length, toeplitz=toeplitz), normal(2, length, 16)
    np.testing.assert_allclose(numpy_of(layer(z)), z[..., :8], rtol=5e-3)
    assert np.abs(numpy_of(layer.kernel)).max() > 0
    np.testing.assert_array_equal(layer.bias, np.ones(length))
