import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import IMPLEMENTATIONS, swish_recurrence
from tests.harness import normal, numpy_of

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 16, 31, 67]


def by_the_equation(x, alpha, beta, step_size, start=None):
    """Equation 3 of Lei et al. 2022, a position at a time, in float64."""
    x = x.astype("float64")
    batch, length, width = x.shape
    past = np.zeros((batch, step_size, width)) if start is None else start.astype("float64")
    c = np.concatenate([past, np.zeros_like(x)], axis=1)
    for i in range(length):
        u = c[:, i] - x[:, i]  # position i - k lies k places before i + k
        c[:, i + step_size] = u / (1 + np.exp(-(alpha * u + beta))) + x[:, i]
    return c[:, step_size:]


def inputs(length, width=5, batch=2):
    return 3 * normal(batch, length, width), 1 + normal(width, seed=1), normal(width, seed=2)


@pytest.mark.parametrize("implementation", ["auto", *IMPLEMENTATIONS])
@pytest.mark.parametrize("step_size", [1, 2, 3, 4])
def test_it_is_equation_3_at_every_length(implementation, step_size):
    for length in LENGTHS:
        x, alpha, beta = inputs(length)
        c = swish_recurrence(x, alpha, beta, step_size, implementation=implementation)
        expected = by_the_equation(x, alpha, beta, step_size)
        np.testing.assert_allclose(numpy_of(c), expected, atol=1e-5, err_msg=f"L={length}")


def test_it_is_a_soft_maximum():
    """Footnote 3 of the paper: c = x where x is far greater, the last c where it is far less."""
    x = np.array([[[50.0], [-50.0], [-50.0], [200.0]]], "float32")
    c = numpy_of(swish_recurrence(x, np.ones(1, "float32"), np.zeros(1, "float32")))
    np.testing.assert_allclose(c[0, :, 0], [50.0, 50.0, 50.0, 200.0], atol=1e-5)


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
@pytest.mark.parametrize("step_size", [1, 2, 4])
def test_padding_on_either_side_changes_no_real_position(implementation, step_size):
    x, alpha, beta = inputs(7)
    alone = numpy_of(swish_recurrence(x, alpha, beta, step_size))
    for left, right in ((0, 5), (3, 0), (step_size, 2)):
        padded = np.pad(x, ((0, 0), (left, right), (0, 0)), constant_values=9.0)
        mask = np.pad(np.ones(x.shape[:2], bool), ((0, 0), (left, right)))
        c = swish_recurrence(
            padded, alpha, beta, step_size, mask=mask, implementation=implementation
        )
        np.testing.assert_allclose(numpy_of(c)[:, left : left + 7], alone, atol=1e-6)


def test_a_sequence_goes_on_from_a_state():
    x, alpha, beta = inputs(9)
    for step_size in (1, 2, 3):
        whole = numpy_of(swish_recurrence(x, alpha, beta, step_size))
        first = numpy_of(swish_recurrence(x[:, :4], alpha, beta, step_size))
        state = first[:, 4 - step_size :]
        rest = swish_recurrence(x[:, 4:], alpha, beta, step_size, initial_state=state)
        np.testing.assert_allclose(numpy_of(rest), whole[:, 4:], atol=1e-6)


@pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
@pytest.mark.parametrize("step_size", [1, 3])
def test_gradients_are_those_of_finite_differences(implementation, step_size):
    x, alpha, beta = inputs(5, width=3, batch=1)
    start, weight = normal(1, step_size, 3, seed=3), normal(1, 5, 3, seed=4)
    values = [x, alpha, beta, start]
    tensors = [tf.constant(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        c = swish_recurrence(
            *tensors[:3], step_size, initial_state=tensors[3], implementation=implementation
        )
        loss = tf.reduce_sum(c * weight)
    for place, gradient in enumerate(tape.gradient(loss, tensors)):
        expected = np.zeros(values[place].shape)
        for index in np.ndindex(*values[place].shape):
            losses = []
            for sign in (1, -1):
                moved = [value.astype("float64") for value in values]
                moved[place][index] += sign * 1e-5
                c = by_the_equation(moved[0], moved[1], moved[2], step_size, moved[3])
                losses.append((c * weight).sum())
            expected[index] = (losses[0] - losses[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, atol=1e-4)


def test_the_state_is_float32_in_mixed_precision():
    """A bfloat16 state of 256 cannot grow by 1: its steps are 2 there."""
    x, alpha, beta = inputs(64)
    half = tf.cast(x, tf.bfloat16)
    c = swish_recurrence(half, alpha, beta)
    assert keras.backend.standardize_dtype(c.dtype) == "bfloat16"
    exact = by_the_equation(numpy_of(half), alpha, beta, 1)
    # Only the result's rounding, 2^-9 of its size, however long the chain.
    np.testing.assert_allclose(numpy_of(c), exact, rtol=2**-8, atol=1e-5)


def test_it_compiles_under_xla_and_takes_any_length():
    x, alpha, beta = inputs(6)
    compiled = tf.function(lambda x: swish_recurrence(x, alpha, beta, 2), jit_compile=True)
    np.testing.assert_allclose(compiled(x), by_the_equation(x, alpha, beta, 2), atol=1e-5)
    graph = tf.function(
        lambda x: swish_recurrence(x, alpha, beta, 2),
        input_signature=[tf.TensorSpec((None, None, 5))],
    )
    for length in (1, 4, 7):
        x, *_ = inputs(length)
        np.testing.assert_allclose(graph(x), by_the_equation(x, alpha, beta, 2), atol=1e-5)


def test_bad_arguments_are_named():
    x, alpha, beta = inputs(3)
    with pytest.raises(ValueError, match="step_size=0"):
        swish_recurrence(x, alpha, beta, 0)
    with pytest.raises(ValueError, match="'fast' is not one of 'auto', 'scan'"):
        swish_recurrence(x, alpha, beta, implementation="fast")
