import keras
import numpy as np
import pytest

from macaron_tf.layers import SwishRNN, SwishRNNBlock
from macaron_tf.layers.mixer import Context
from macaron_tf.models import EncoderConfig, Stack
from tests.harness import normal, numpy_of, randomized, twin_of, weights_of
from tests.toys.marks import slow, thorough
from tests.toys.swish import LENGTHS, by_the_equations


def reference(layer, x):
    """Computes the SwishRNN layer, equations 2 to 4 of Lei et al. 2022, in float64."""
    w = weights_of(layer)
    vectors = [w[name] for name in ("alpha", "beta", "state_bias", "gate_bias")]
    h = by_the_equations(x @ w["inner/kernel"], vectors, layer.step_size, layer.gate)
    return h @ w["outer/kernel"] + w["outer/bias"]


@pytest.mark.parametrize("step_size", [1, 2, 3, 4])
def test_it_is_equations_2_to_4(step_size):
    layer = randomized(SwishRNN(10, step_size=step_size), (2, 67, 6))
    for length in LENGTHS:
        x = normal(2, length, 6, seed=length)
        # Outputs exceed 10, with a float32 error of 1e-6.
        np.testing.assert_allclose(
            numpy_of(layer(x)), reference(layer, x), rtol=1e-6, atol=1e-5, err_msg=f"L={length}"
        )


def test_the_gate_may_be_a_sigmoid():
    layer, x = randomized(SwishRNN(10, gate="sigmoid"), (2, 9, 6)), normal(2, 9, 6)
    np.testing.assert_allclose(numpy_of(layer(x)), reference(layer, x), atol=1e-5)


def test_it_starts_with_the_paper_s_values():
    layer = SwishRNN(4)
    layer.build((None, None, 6))
    np.testing.assert_array_equal(layer.alpha, np.ones(4))
    for bias in (layer.beta, layer.state_bias, layer.gate_bias, layer.outer.bias):
        np.testing.assert_array_equal(bias, np.zeros(bias.shape))


@pytest.mark.parametrize(("width", "inner"), [(3072, 2048), (4096, 2752), (384, 256), (768, 512)])
def test_its_width_is_the_paper_s_two_thirds(width, inner):
    block = SwishRNNBlock(num_heads=1, feed_forward_dim=width)
    assert block.feed_forward_1.sublayer.inner_dim == inner


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


@pytest.mark.parametrize("step_size", [3, *thorough(1)])
def test_bidirectional_reads_each_row_from_both_ends(step_size, tmp_path):
    x, lengths = normal(2, 9, 6), (9, 5)
    mask = np.arange(9) < np.array(lengths)[:, None]
    layer = keras.layers.Bidirectional(SwishRNN(10, step_size=step_size))
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, layer(inputs))
    model.set_weights([0.5 * normal(*w.shape, seed=i) for i, w in enumerate(model.get_weights())])
    model.save(tmp_path / "model.keras")
    for one in (layer, keras.saving.load_model(tmp_path / "model.keras").layers[1]):
        y = numpy_of(one(x, mask=mask))
        ahead, back = (
            twin_of(part, SwishRNN(10, step_size=step_size), x.shape)
            for part in (one.forward_layer, one.backward_layer)
        )
        for row, length in enumerate(lengths):
            real = x[row : row + 1, :length]
            backward = reference(back, real[:, ::-1])[:, ::-1]
            expected = np.concatenate([reference(ahead, real), backward], axis=-1)[0]
            np.testing.assert_allclose(y[row, :length], expected, rtol=1e-6, atol=1e-5)


def test_reading_backwards_keeps_documents_and_segments():
    layer = randomized(SwishRNN(10, go_backwards=True), (2, 9, 6))
    ahead = twin_of(layer, SwishRNN(10), (2, 9, 6))
    x, documents = normal(2, 9, 6), np.array([[0] * 4 + [1] * 5, [0] * 9])
    y, _ = layer.mix(x, Context(documents=documents))
    flipped = Context(documents=documents[:, ::-1])
    np.testing.assert_allclose(y, ahead.mix(x[:, ::-1], flipped)[0], atol=1e-6)
    state, parts = layer.init_memory(2, 0), []
    for part in (x[:, 4:], x[:, :4]):  # from the end of the text
        y, state = layer.mix(part, Context(), state)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), layer(x), atol=1e-6)


def test_a_state_with_documents_is_refused():
    layer, x = randomized(SwishRNN(10), (2, 9, 6)), normal(2, 9, 6)
    documents = np.zeros((2, 9), "int32")
    with pytest.raises(ValueError, match="takes either a state or several documents"):
        layer.mix(x, Context(documents=documents), np.zeros((2, 1, 10), "float32"))
