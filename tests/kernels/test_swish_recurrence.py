import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import GATES, NAMES, implementation_scope, swish_gate
from macaron_tf.kernels import swish_recurrence as _swish_recurrence
from macaron_tf.kernels.choice import chosen
from tests.harness import normal, numpy_of

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 16, 31, 67]


def as_it_runs(kernel, *arguments, implementation="auto", **options):
    """The kernel where its implementation runs: `"xla"` within what XLA compiles."""
    if implementation == "native":
        native = pytest.importorskip("macaron_tf.kernels.native")
        if not native.available():
            pytest.skip("no C++ compiler built the native op")
    options = {**options, "implementation": implementation}
    if implementation != "xla":
        return kernel(*arguments, **options)
    # Numbers and None are the program's own, arrays its inputs.
    names = [name for name, value in options.items() if hasattr(value, "shape")]
    arrays = [a for a in arguments if hasattr(a, "shape")]
    rest = arguments[len(arrays) :]

    @tf.function(jit_compile=True, autograph=False)
    def compiled(given, named):
        return kernel(*given, *rest, **{**options, **named})

    return compiled(arrays, {name: options[name] for name in names})


def swish_recurrence(*arguments, **options):
    return as_it_runs(_swish_recurrence, *arguments, **options)


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


@pytest.mark.parametrize("implementation", ["auto", *NAMES])
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


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("step_size", [1, 2, 4])
def test_padding_on_either_side_changes_no_real_position(implementation, step_size):
    x, alpha, beta = inputs(7)
    alone = numpy_of(swish_recurrence(x, alpha, beta, step_size, implementation=implementation))
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


@pytest.mark.parametrize("implementation", NAMES)
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


def test_it_takes_any_length_in_one_graph():
    graph = tf.function(
        lambda x: swish_recurrence(x, alpha, beta, 2),
        input_signature=[tf.TensorSpec((None, None, 5))],
    )
    for length in (1, 4, 7):
        x, alpha, beta = inputs(length)
        np.testing.assert_allclose(graph(x), by_the_equation(x, alpha, beta, 2), atol=1e-5)


@pytest.mark.parametrize("implementation", [name for name in NAMES if name != "scan"])
@pytest.mark.parametrize("step_size", [1, 2, 3])
def test_all_have_the_reference_s_gradients(implementation, step_size):
    x, alpha, beta = inputs(23, width=18)
    mask = np.ones(x.shape[:2], bool)
    mask[0, 17:], mask[1, :4] = False, False
    weight = normal(*x.shape, seed=5)

    def gradients(implementation):
        tensors = [tf.constant(value) for value in (x, alpha, beta)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            c = swish_recurrence(*tensors, step_size, mask=mask, implementation=implementation)
            loss = tf.reduce_sum(c * weight)
        return [g.numpy() for g in tape.gradient(loss, tensors)]

    for ours, reference in zip(gradients(implementation), gradients("scan"), strict=True):
        largest = np.abs(reference).max()
        np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("masked", [False, True])
def test_nan_and_infinity_pass_as_in_the_reference(implementation, masked):
    x, alpha, beta = inputs(9)
    x[0, 3, 0], x[0, 4, 1], x[1, 2, 2], x[1, 5, 3] = np.nan, np.inf, -np.inf, 1e30
    mask = np.ones((2, 9), bool) if masked else None
    if masked:
        x[0, 6:8], x[1, 0, 4] = np.nan, -np.inf
        mask[0, 6:8], mask[1, 0] = False, False
    options = {"step_size": 2, "mask": mask}
    ours, reference = (
        numpy_of(swish_recurrence(x, alpha, beta, **options, implementation=name))
        for name in (implementation, "scan")
    )
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(reference))
    assert np.isnan(ours).any() and not np.isnan(ours).all()
    np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("gate", GATES)
def test_the_gated_form_is_the_recurrence_and_a_gate(implementation, gate):
    """Equation 4, in float64, and its gradient against the reference's."""
    x, (alpha, beta) = 2 * normal(2, 11, 12), inputs(1, width=6)[1:]
    biases = [normal(6, seed=seed) for seed in (7, 8)]
    c = by_the_equation(x[..., :6], alpha, beta, 2) + biases[0]
    z = x[..., 6:].astype("float64") + biases[1]
    tanh = np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    factor = {
        "gelu": z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
        "gelu_tanh": z * 0.5 * (1 + tanh),
        "sigmoid": 1 / (1 + np.exp(-z)),
    }[gate]

    def found(implementation):
        tensors = [tf.constant(value) for value in (x, alpha, beta, *biases)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = as_it_runs(swish_gate, *tensors, 2, gate, implementation=implementation)
            loss = tf.reduce_sum(y * tf.cos(tf.range(6.0)))
        return [y, *tape.gradient(loss, tensors)]

    ours = found(implementation)
    np.testing.assert_allclose(ours[0], c * factor, atol=2e-5)
    for mine, reference in zip(ours[1:], found("scan")[1:], strict=True):
        largest = np.abs(reference).max()
        np.testing.assert_allclose(mine, reference, rtol=0, atol=1e-5 * largest)


def test_the_place_decides_which_one_runs():
    seen = []
    note = lambda: seen.append(chosen("auto", "float32")) or tf.constant(0)  # noqa: E731
    tf.function(note, jit_compile=True)()
    inner = tf.function(note, jit_compile=True)
    tf.function(lambda: inner())()
    with implementation_scope("scan"):
        tf.function(note)()
        assert chosen("loop", "float32") == "loop"
    assert chosen("auto", "float64") == "loop"
    note()
    assert seen[:3] == ["xla", "xla", "scan"]
    assert seen[3] in ("native", "loop")


def test_bad_arguments_are_named():
    x, alpha, beta = inputs(3)
    with pytest.raises(ValueError, match="step_size=0"):
        swish_recurrence(x, alpha, beta, 0)
    with pytest.raises(ValueError, match="'fast' must be one of 'auto', 'scan'"):
        swish_recurrence(x, alpha, beta, implementation="fast")
    with pytest.raises(ValueError, match="'relu' must be one of 'gelu'"):
        swish_gate(x, alpha, beta, alpha, beta, gate="relu")
    with (
        pytest.raises(ValueError, match="'fast' must be one of 'auto', 'scan'"),
        implementation_scope("fast"),
    ):
        pass
