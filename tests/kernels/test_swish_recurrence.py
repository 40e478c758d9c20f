import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import NAMES, implementation_scope, native, swish_gate
from macaron_tf.kernels import swish_recurrence as _swish_recurrence
from macaron_tf.kernels.choice import select_implementation
from tests.harness import numpy_of
from tests.toys.swish import FORMS, by_the_equations, inputs, relative_error, with_gradients


def as_it_runs(kernel, *arguments, implementation="auto", **options):
    """Runs a kernel with the given implementation; "xla" compiles the call with XLA."""
    if implementation == "native" and not native.operations():
        pytest.skip("no C++ compiler built the native op")
    if implementation == "xla":  # arrays are inputs of the program, and all else is constant
        kernel = tf.function(kernel, jit_compile=True, autograph=False)
    return kernel(*arguments, **options, implementation=implementation)


def swish_recurrence(*arguments, **options):
    return as_it_runs(_swish_recurrence, *arguments, **options)


def run(implementation):
    """Returns a function for `with_gradients` that runs the given implementation."""

    def function(x, vectors, step_size, gate, mask=None, start=None):
        options = {"mask": mask, "implementation": implementation}
        if gate is not None:
            return as_it_runs(swish_gate, x, *vectors, step_size, gate, **options)
        return swish_recurrence(x, *vectors, step_size, initial_state=start, **options)

    return function


def case(name, *values, quick=True):
    """Returns the parameters of a test case; those of XLA and of the native op may be slow."""
    if quick or name not in ("xla", "native"):
        return pytest.param(name, *values)
    return pytest.param(
        name, *values, marks=pytest.mark.slow if name == "xla" else pytest.mark.thorough
    )


# Gates follow the recurrence, so one step size is enough except for native gates.
CASES = [
    case(name, gate, step_size, quick=step_size == 2 and gate is None)
    for name in NAMES
    for gate in FORMS
    for step_size in ((1, 2, 3, 4) if gate is None or name == "native" else (2,))
]
SHAPES = [(23, 18, 1), (5, 3, 0), (17, 6, 2), (1, 3, 0), (67, 3, 0)]
# Whole SIMD vectors and remainders.
NATIVE = [(*shape, mask) for shape in ((1, 5), (3, 33), (31, 33), (67, 5)) for mask in (0, 1, 2)]


@pytest.mark.parametrize(("implementation", "gate", "step_size"), CASES)
def test_values_and_gradients_are_those_of_float64(implementation, gate, step_size):
    shapes = NATIVE if implementation == "native" else SHAPES
    given = [inputs(length, width, step_size, gate, masked) for length, width, masked in shapes]

    def every(function, dtype, given):
        pairs = ((x, vectors, step_size, gate, *rest) for x, vectors, *rest in given)
        return [with_gradients(function, dtype, *arguments) for arguments in pairs]

    ours = functools.partial(every, run(implementation), "float32")
    if implementation == "xla":  # one program to compile
        ours = tf.function(ours, jit_compile=True, autograph=False)
    exact = every(by_the_equations, "float64", given)
    for shape, actual, expected in zip(shapes, ours(given), exact, strict=True):
        for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert relative_error(a, e) < 1e-5, (shape, place)


def plain(length):
    """Returns x, alpha and beta for rows of `length` positions."""
    x, vectors, *_ = inputs(length, 5, 1, None)
    return x, *vectors


def exact(x, alpha, beta, step_size):
    x, *vectors = (tf.cast(array, "float64") for array in (x, alpha, beta))
    return by_the_equations(x, vectors, step_size, None)


def test_the_state_is_float32_in_mixed_precision():
    """With bfloat16 inputs, the state is float32, so only the result is rounded to bfloat16."""
    x, alpha, beta = plain(64)
    half = tf.cast(x, tf.bfloat16)
    c = swish_recurrence(half, alpha, beta)
    assert keras.backend.standardize_dtype(c.dtype) == "bfloat16"
    # The only error is the result's rounding, 2^-9 of its size, whatever the length.
    expected = exact(numpy_of(half), alpha, beta, 1)
    np.testing.assert_allclose(numpy_of(c), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("implementation", ["scan", "loop", "native"])
def test_one_graph_takes_any_length_and_none(implementation):
    _, *vectors = plain(1)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 5))])
    def run(x):
        return swish_recurrence(x, *vectors, 2, implementation=implementation)

    for length in (1, 4, 7):
        x, *_ = plain(length)
        np.testing.assert_allclose(run(x), exact(x, *vectors, 2), atol=1e-5)
    for shape in [(0, 3, 5), (2, 0, 5), (0, 0, 5)]:
        assert run(tf.ones(shape)).shape == shape


@pytest.mark.parametrize("implementation", NAMES)
@pytest.mark.parametrize("masked", [False, True])
def test_nan_and_infinity_pass_as_in_the_reference(implementation, masked):
    x, alpha, beta = plain(9)
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


def test_the_place_decides_which_one_runs():
    seen = []
    note = lambda: seen.append(select_implementation("auto", "float32")) or tf.constant(0)  # noqa: E731
    tf.function(note, jit_compile=True)()
    inner = tf.function(note, jit_compile=True)
    tf.function(lambda: inner())()
    with implementation_scope("scan"):
        tf.function(note)()
        assert select_implementation("loop", "float32") == "loop"
    assert select_implementation("auto", "float64") == "loop"
    note()
    assert seen[:3] == ["xla", "xla", "scan"]
    assert seen[3] in ("native", "loop")
