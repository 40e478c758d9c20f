"""Tests of the native SwishRNN kernels: their values, and their use as TensorFlow operations."""

import platform
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import GATES, native
from tests.harness import numpy_of, rejects
from tests.toys.swish import FORMS, by_the_equations, inputs, relative_error, with_gradients

ROUNDING = 2.0**-8  # largest relative error of rounding to bfloat16


def run_native(x, vectors, step_size, gate, mask=None, start=None):
    if gate is None:
        return native.recurrence(x, *vectors, step_size, mask, start)
    return native.gated(x, *vectors, step_size, gate, mask)


@pytest.mark.parametrize("gate", FORMS)
def test_bfloat16_differs_from_the_reference_by_its_rounding(gate):
    for step_size, width in ((1, 33), (3, 70)):
        given = inputs(40, width, step_size, gate, masked=True)
        x = tf.cast(given[0], tf.bfloat16)
        exact = numpy_of(x)
        half = with_gradients(run_native, "bfloat16", x, given[1], step_size, gate, *given[2:])
        full = with_gradients(run_native, "float32", exact, given[1], step_size, gate, *given[2:])
        # The rounded weight of the loss does not affect the value.
        np.testing.assert_allclose(half[0], full[0], rtol=ROUNDING, atol=1e-6)
        for a, e in zip(half[1:], full[1:], strict=True):
            assert relative_error(a, e) < 4 * ROUNDING


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    bits[:64] = (bits[:64] & 0xFFFF0000) | 0x8000  # ties
    bits[64] = 0x7FC0BEEF  # a NaN with all bits in use
    values = bits.view("float32")
    values = values[~(np.abs(values) <= 1e-37)]  # TensorFlow flushes subnormals
    ones = np.ones_like(values)
    # y = (0 + state_bias) * sigmoid(100), so the rounded number is state_bias, a float32.
    x = tf.zeros((1, 1, 2 * len(values)), tf.bfloat16)
    y = native.gated(x, ones, ones, values, 100 * ones, 1, "sigmoid")
    np.testing.assert_array_equal(numpy_of(y[0, 0]), numpy_of(tf.cast(values, tf.bfloat16)))


@pytest.mark.parametrize("gate", GATES)
def test_gates_over_all_magnitudes(gate):
    z = np.concatenate([np.linspace(-16, 16, 4001), 10.0 ** np.arange(-30, 30)])
    z = np.concatenate([z, -z, [np.nan, np.inf, -np.inf]]).astype("float32")
    x = np.concatenate([np.zeros_like(z), z])[None, None]
    vectors = [np.full_like(z, number) for number in (0, 0, 1, 0)]  # the state is 0, plus 1

    def value_and_slope(function, dtype):
        given = tf.constant(x, dtype)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = function(given, [tf.constant(vector, dtype) for vector in vectors], 1, gate)
        return y[0, 0].numpy(), tape.gradient(y, given)[0, 0, len(z) :].numpy()

    value, slope = value_and_slope(run_native, "float32")
    exact, exact_slope = value_and_slope(by_the_equations, "float64")
    np.testing.assert_allclose(value, exact, rtol=1e-6, atol=3e-7)
    # 0.7 * 1e38 overflows only in the cube of tanh GELU, where the gate is 0 or z.
    finite = np.abs(z) < 1e9
    np.testing.assert_allclose(slope[finite], exact_slope[finite], rtol=1e-6, atol=1e-6)


def test_a_step_longer_than_the_sequence_leaves_the_rest_of_the_start_alone():
    given = inputs(2, 5, 2**20, None)
    long, whole = (run_native(*given[:2], step_size, None) for step_size in (2**20, 2))
    np.testing.assert_array_equal(long, whole)
    start = np.arange(10, dtype="float32").reshape(1, 5, 2)
    arguments = (np.zeros((1, 2, 2), "float32"), [np.ones(2, "float32")] * 2, 5, None, None, start)
    *_, dstart = with_gradients(run_native, "float32", *arguments)
    *_, expected = with_gradients(by_the_equations, "float64", *arguments)
    np.testing.assert_allclose(dstart, expected, atol=1e-6)
    assert np.all(dstart[:, 2:] == 0) and np.all(dstart[:, :2] != 0)


def test_sequences_do_not_mix_and_runs_repeat_bit_for_bit():
    """Sequences do not affect one another, and repeated runs are bit-identical.

    300 columns are split among several threads.
    """
    x, vectors, *_ = inputs(20, 300, 1, "gelu", batch=4)
    given = (run_native, "float32", x, vectors, 1, "gelu", None, None)
    runs = [with_gradients(*given) for _ in range(3)]
    for run in runs[1:]:
        for a, e in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(a, e)
    for b in range(4):
        alone = native.gated(x[b : b + 1], *vectors, 1, "gelu")
        np.testing.assert_array_equal(alone[0], tf.cast(runs[0][0][b], tf.float32))


@pytest.mark.parametrize("gate", [None, "gelu"])
def test_graphs_of_unknown_shapes_and_loops(gate):
    """Three kernel runs in a loop of a graph have the sum and the gradient of three eager runs."""
    x, vectors, mask, start = inputs(9, 5, 2, gate, masked=True)
    shapes = [tf.TensorSpec((None, None, x.shape[-1])), tf.TensorSpec((None, None), tf.bool)]

    def summed(x, mask):
        total = 0.0
        with tf.GradientTape() as tape:
            tape.watch(x)
            for i in tf.range(3.0):
                total += tf.reduce_sum(run_native(i * x, vectors, 2, gate, mask, start))
        return total, tape.gradient(total, x)

    given = tf.constant(x), tf.constant(mask)
    graph = tf.function(summed, input_signature=shapes)
    operations = graph.get_concrete_function().graph.get_operations()
    assert any("While" in operation.type for operation in operations)
    (total, gradient), (expected, slope) = graph(*given), summed(*given)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_named():
    x, vectors, mask, start = inputs(4, 5, 2, None, masked=True)
    run = native.recurrence
    for function, arguments, message in (
        (run, (x[0], *vectors, 2), "x must be of rank 3"),
        (run, (x, vectors[0][:4], vectors[1], 2), r"alpha must be of shape \[5\]"),
        (run, (x, *vectors, 2, mask[:, :3]), r"mask must be of shape \[2,4\]"),
        (run, (x, *vectors, 2, mask, start[:, :1]), r"start must be of shape \[2,2,5\]"),
        (native.gated, (x, *vectors, *vectors, 1, "gelu"), "must be even, but is 5"),
        (native.gated, (x, *vectors, *vectors, 1, "relu"), '"relu" is not in the list of allowed'),
    ):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
            function(*arguments)
    # In graph mode, before any value is known.
    for shape, message in (((None, 5), "rank 3"), ((None, None, 6), "6 and 5|5 and 6")):
        graph = tf.function(lambda x: run(x, *vectors, 2), input_signature=[tf.TensorSpec(shape)])
        rejects(message, graph.get_concrete_function)


def test_every_loop_is_vectorized():
    """The compiler vectorizes every loop; a scalar loop would take eight times as long."""
    if platform.machine() != "x86_64" or not shutil.which("objdump"):
        pytest.skip("no objdump, or another processor")
    library = str(native.library_path())
    listing = subprocess.run(["objdump", "-dC", library], capture_output=True, text=True).stdout
    loops = {}
    for function in listing.split("\n\n"):
        name, _, code = function.partition("\n")
        # Loops that hold a state without a gate only copy the state.
        found = re.search(
            r"<void macaron_tf::((?:\w+Row(?:Back)?|DropChunk)<(?!true, macaron_tf::NoGate)[^(]*)",
            name,
        )
        if found and "@plt" not in name:
            loops[found[1]] = code
    assert len(loops) == 50
    for name, code in loops.items():
        assert re.search(r"\sv?(mul|fn?m(add|sub)\d+)ps\s", code), name
