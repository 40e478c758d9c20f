"""Native norms, GELU and cross-entropy agree with TensorFlow; dropout has the right statistics."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import implementation_scope, native, swish_gate, swish_recurrence
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.norms import Dropout, LayerNormalization
from tests.harness import normal, refuses
from tests.toys.swish import built

__all__ = ["built"]  # a fixture for every test here

ROUNDING = {"float32": 1e-6, "bfloat16": 2.0**-8}
# Rows in one and in several blocks of partial sums; whole SIMD vectors and remainders.
SHAPES = [(1, 1), (3, 5, 64), (70, 37), (2, 33, 256)]


def with_gradients(function, *tensors):
    """Returns a list of a function's value and its gradients for a random upstream gradient."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    upstream = tf.cast(normal(*y.shape, seed=9), y.dtype)
    return [y, *tape.gradient(y, tensors, output_gradients=upstream)]


def assert_close(actual, expected, dtype, factor):
    for mine, exact in zip(actual, expected, strict=True):
        mine, exact = np.asarray(tf.cast(mine, "float64")), np.asarray(exact)
        bound = factor * ROUNDING[dtype] * max(1.0, np.abs(exact).max())
        np.testing.assert_allclose(mine, exact, rtol=0, atol=bound)


def exact_layer_norm(x, scale, offset):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-5) * scale + offset


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_and_its_gradients(shape, dtype):
    x = tf.cast(3 + 2 * normal(*shape), dtype)
    vectors = [1 + normal(shape[-1], seed=1), normal(shape[-1], seed=2)]
    actual = with_gradients(lambda *given: native.layer_norm(*given, 1e-5), x, *vectors)
    expected = with_gradients(exact_layer_norm, *(tf.cast(t, "float64") for t in (x, *vectors)))
    # The upstream gradient is rounded too. With one column, the deviation is sqrt(1e-5) alone.
    assert_close(actual, expected, dtype, 20 if shape[-1] > 1 else 2000)
    assert [t.dtype.name for t in actual] == [dtype, dtype, "float32", "float32"]


def exact_cross_entropy(logits, labels, smoothing):
    target = (1 - smoothing) * tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    target += smoothing / logits.shape[1]
    return -tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (70, 37), (5, 1001)])
def test_cross_entropy_and_its_gradient(shape, dtype, smoothing):
    logits = tf.cast(20 + 5 * normal(*shape), dtype)
    labels = np.random.default_rng(3).integers(0, shape[1], shape[0])

    actual = with_gradients(lambda x: native.cross_entropy(x, labels, smoothing)[0], logits)
    exact = partial(exact_cross_entropy, labels=labels, smoothing=smoothing)
    expected = with_gradients(exact, tf.cast(logits, tf.float64))
    assert_close(actual[:1], expected[:1], "float32", 10)
    assert_close(actual[1:], expected[1:], dtype, 3)
    assert [t.dtype.name for t in actual] == ["float32", dtype]
    nll = native.cross_entropy(logits, labels, smoothing)[1]
    assert np.array_equal(nll, native.cross_entropy(logits, labels)[0])


def test_cross_entropy_of_hard_rows():
    """Losses and gradients equal TensorFlow's for infinite, huge and NaN logits.

    An empty batch has an empty result, and labels out of range raise an error.
    """
    scores = [[-np.inf, 0, 1], [1e4, -1e4, 0], [np.nan, 0, 0], [np.inf, 0, 0], [-np.inf] * 3]
    labels = np.array([2, 1, 1, 1, 0])
    found = with_gradients(lambda x: native.cross_entropy(x, labels)[0], np.float32(scores))
    expected = with_gradients(
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x), np.float32(scores)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(np.isnan(mine), np.isnan(theirs))
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    none = native.cross_entropy(tf.zeros((0, 7)), np.zeros(0, np.int32))
    assert [part.shape for part in none] == [(0,), (0,)]
    for label in (-1, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"label {label} of row 1 is not"):
            native.cross_entropy(tf.zeros((2, 3)), [0, label])
    with pytest.raises(ValueError, match="rank 1"):  # in a graph
        tf.function(lambda label: native.cross_entropy(tf.zeros((1, 3)), label))(tf.constant(1))


def test_the_gradient_of_cross_entropy_replaces_only_logits_that_nothing_else_reads():
    labels, kernel = [1, 2], tf.Variable(normal(4, 5))

    @tf.function(autograph=False)
    def step(x, keep):
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, kernel)
            loss = tf.reduce_sum(native.cross_entropy(logits, labels)[0])
        return logits if keep else None, tape.gradient(loss, [logits, kernel])

    x = tf.constant(normal(2, 4, seed=1))
    _, replaced = step(x, False)
    logits, (dlogits, dkernel) = step(x, True)
    assert all(np.array_equal(*pair) for pair in zip(replaced, (dlogits, dkernel), strict=True))
    assert np.allclose(logits, x.numpy() @ kernel.numpy(), atol=1e-6)
    expected = tf.nn.softmax(logits).numpy() - np.eye(5)[labels]
    assert np.allclose(dlogits, expected, atol=1e-6)
    assert np.allclose(dkernel, x.numpy().T @ expected, atol=1e-6)


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_with_a_bias_and_its_gradients(shape, dtype, approximate):
    x, bias = tf.cast(3 * normal(*shape), dtype), normal(shape[-1], seed=1)
    actual = with_gradients(lambda x, bias: native.bias_gelu(x, bias, approximate), x, bias)
    exact = [tf.cast(tensor, "float64") for tensor in (x, bias)]
    expected = with_gradients(lambda x, bias: tf.nn.gelu(x + bias, approximate), *exact)
    assert_close(actual, expected, dtype, 10)


def test_second_derivatives_need_stock_operations():
    layer = LayerNormalization(epsilon=1e-5)
    layer.build((2, 5, 8))
    x = tf.constant(normal(2, 5, 8), tf.float32)

    def twice(function):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.sin(function(x)))
            slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(slope, x)

    vector, mask = tf.ones(4), tf.constant([[True] * 5, [True] * 4 + [False]])
    for kernel in (
        lambda x: layer(x, training=True),
        lambda x: native.bias_gelu(x, tf.zeros(8)),
        lambda x: native.cross_entropy(x[0], tf.range(5), 0.1)[0],
        lambda x: swish_recurrence(x[..., :4], vector, vector, 2, mask, implementation="native"),
        lambda x: swish_gate(x, *[vector] * 4, 2, "gelu", mask, "native"),
    ):
        refuses("implementation_scope", twice, kernel)
    with implementation_scope("loop"):
        found = twice(lambda x: layer(x, training=True))
    expected = twice(lambda x: exact_layer_norm(x, tf.ones(8), tf.zeros(8)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_nan_and_infinity_stay_in_their_row():
    x = normal(4, 64).astype("float32")
    x[1, 3], x[2, 5] = np.nan, np.inf
    norm = native.layer_norm(x, None, None, 1e-5).numpy()
    assert np.isnan(norm[1:3]).all() and np.isfinite(norm[[0, 3]]).all()
    gelu = native.bias_gelu(x, np.zeros(64, "float32")).numpy()
    assert np.isnan(gelu[1, 3]) and gelu[2, 5] == np.inf and np.isfinite(gelu).sum() == 254


def philox(key, blocks):
    """Returns TensorFlow's Philox 4x32-10 output from counter 0: `(blocks, 4)` uint32."""
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4 * blocks],
        key=[np.uint64(key[0]) | np.uint64(key[1]) << np.uint64(32)],
        counter=np.zeros(2, "uint64"),
        alg=1,
        dtype=tf.uint32,
    )
    return words.numpy().reshape(blocks, 4)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.99999])
@pytest.mark.parametrize("size", [1, 127, 128, 1000, 1_000_000])
def test_dropout_follows_the_bits_of_philox(size, rate):
    key = (7, 0xFFFFFFFE)
    chunks = -(-size // 128)
    # A chunk of 128 uses 16 blocks of 4 words, word by word, lower halves first.
    words = philox(key, 16 * chunks).reshape(chunks, 16, 4).transpose(0, 2, 1).reshape(chunks, 64)
    bits = np.concatenate([words & 0xFFFF, words >> 16], axis=1).reshape(-1)[:size]
    threshold = round(rate * 65536)
    x = normal(size).astype("float32")
    expected = np.where(bits < threshold, 0, x * np.float32(65536 / (65536 - threshold)))
    np.testing.assert_array_equal(native.dropout(x, rate, np.array(key)), expected)


def test_dropout_passes_gradients_where_it_kept():
    x = tf.constant(normal(40, 50), tf.bfloat16)
    y, gradient = with_gradients(lambda x: native.dropout(x, 0.5, (3, 4)), x)
    upstream = tf.cast(normal(40, 50, seed=9), tf.bfloat16)
    np.testing.assert_array_equal(gradient, tf.where(y != 0, 2 * upstream, 0))


def test_bad_arguments_are_named():
    x = np.ones((2, 3), "float32")
    for function, arguments, message in (
        (native.dropout, (x, 1.0, (1, 2)), "rate must be 0 or more and below 1"),
        (native.dropout, (x, -0.1, (1, 2)), "rate must be 0 or more and below 1"),
        (native.dropout, (x, 0.1, (1, 2, 3)), r"key must be of shape \[2\]"),
        (native.layer_norm, (x, np.ones(4), np.ones(3), 1e-5), r"scale must be of shape \[3\]"),
        (native.bias_gelu, (x, np.ones(4)), r"bias must be of shape \[3\]"),
    ):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
            function(*arguments)


def operations(function, *arguments) -> set[str]:
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layers_take_them_in_training_alone(policy):
    model = keras.Sequential(
        [
            Dense(8, activation="gelu", dtype=policy),
            Dropout(0.25, dtype=policy),
            LayerNormalization(dtype=policy),
        ]
    )
    x = tf.constant(normal(4, 6), tf.float32)
    names = {"MacaronTf>BiasGelu", "MacaronTf>Dropout", "MacaronTf>LayerNorm"}
    model(x)
    assert names <= operations(lambda x: model(x, training=True), x)
    assert not names & operations(lambda x: model(x, training=False), x)
    with implementation_scope("loop"):
        assert not names & operations(lambda x: model(x, training=True), x)
    # Apart from dropout, training and inference compute the same.
    dense, _, norm = model.layers
    for layer, given in ((dense, x), (norm, dense(x))):
        trained, plain = (layer(given, training=training) for training in (True, False))
        assert trained.dtype == plain.dtype
        trained, plain = (np.asarray(tf.cast(y, "float32")) for y in (trained, plain))
        np.testing.assert_allclose(trained, plain, atol=1e-6 if policy == "float32" else 0.05)


def test_the_same_seed_drops_the_same_places():
    x = np.ones((30, 40), "float32")
    first, again, other = (Dropout(0.5, seed=seed) for seed in (5, 5, 6))
    one = first(x, training=True).numpy()
    np.testing.assert_array_equal(again(x, training=True), one)
    assert (other(x, training=True).numpy() != one).any()
    assert (first(x, training=True).numpy() != one).any()  # the next draw
