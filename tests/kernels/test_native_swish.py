"""The native kernels as TensorFlow operations; `test_native_numbers.py` has their numbers."""

import platform
import re
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import native
from tests.kernels.test_native_numbers import built, inputs, run_native

__all__ = ["built"]  # a fixture for every test here


@pytest.mark.parametrize("gate", [None, "gelu"])
def test_graphs_of_unknown_shapes_and_loops(gate):
    x, vectors, mask, start = inputs(9, 5, 2, gate, masked=True)
    width = x.shape[-1]

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, width)),
            tf.TensorSpec((None, None), tf.bool),
        ]
    )
    def doubled(x, mask):
        """The sum of three runs over ever larger x, in a loop of the graph."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, total = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, total: (
                    i + 1,
                    total
                    + tf.reduce_sum(
                        run_native(tf.cast(i, x.dtype) * x, vectors, 2, gate, mask, start)
                    ),
                ),
                (tf.constant(0), tf.constant(0.0)),
            )
        return total, tape.gradient(total, x)

    x, mask = tf.constant(x), tf.constant(mask)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.add_n(
            [tf.reduce_sum(run_native(i * x, vectors, 2, gate, mask, start)) for i in range(3)]
        )
    actual, gradient = doubled(x, mask)
    np.testing.assert_allclose(actual, total, rtol=1e-5)
    np.testing.assert_allclose(gradient, tape.gradient(total, x), rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_named():
    x, vectors, mask, start = inputs(4, 5, 2, None, masked=True)
    run = native.recurrence
    invalid = (ValueError, tf.errors.InvalidArgumentError)
    for arguments, message in (
        ((x[0], *vectors, 2), "x must be of rank 3"),
        ((x, vectors[0][:4], vectors[1], 2), r"alpha must be of shape \[5\]"),
        ((x, *vectors, 2, mask[:, :3]), r"mask must be of shape \[2,4\]"),
        ((x, *vectors, 2, mask, start[:, :1]), r"start must be of shape \[2,2,5\]"),
        ((x, *vectors, 0), "step_size"),
    ):
        with pytest.raises(invalid, match=message):
            run(*arguments)
    with pytest.raises(invalid, match="its width is 5"):
        native.gated(x, *vectors, *vectors, 1, "gelu")
    with pytest.raises(ValueError, match="'relu' must be one of"):
        native.gated(x, *vectors, *vectors, 1, "relu")
    # While a graph is made, before any value is known.
    for shape, message in (((None, 5), "rank 3"), ((None, None, 6), "6 and 5|5 and 6")):
        graph = tf.function(lambda x: run(x, *vectors, 2), input_signature=[tf.TensorSpec(shape)])
        with pytest.raises(ValueError, match=message):
            graph.get_concrete_function()


def test_a_saved_model_can_refuse_it(tmp_path):
    _, vectors, *_ = inputs(4, 5, 1, None)
    module = tf.Module()
    module.run = tf.function(
        lambda x: native.recurrence(x, *vectors, 1),
        input_signature=[tf.TensorSpec((None, None, 5))],
    )
    options = tf.saved_model.SaveOptions(namespace_whitelist=[])
    with pytest.raises(ValueError, match="MacaronTf>SwishRecurrence"):
        tf.saved_model.save(module, str(tmp_path), module.run, options)


def test_every_loop_is_vectorized():
    """Left scalar by the compiler, one loop takes eight times as long, and nothing else shows."""
    if platform.machine() != "x86_64" or not shutil.which("objdump"):
        pytest.skip("no objdump, or another processor")
    library = str(native.library_path())
    listing = subprocess.run(["objdump", "-dC", library], capture_output=True, text=True).stdout
    loops = {}
    for function in listing.split("\n\n"):
        name, _, code = function.partition("\n")
        # Loops that hold a state without a gate copy it and have nothing to calculate.
        found = re.search(
            r"<void macaron_tf::((?:\w+Row(?:Back)?|DropChunk)<(?!true, macaron_tf::NoGate)[^(]*)",
            name,
        )
        if found and "@plt" not in name:
            loops[found[1]] = code
    assert len(loops) == 46
    for name, code in loops.items():
        assert re.search(r"\sv?(mul|fn?m(add|sub)\d+)ps\s", code), name


def test_replicas_of_a_new_process():
    """The library loads from the cache, and two replicas sum to one's gradient."""
    program = """
        import numpy as np, tensorflow as tf
        cpu, two = tf.config.list_physical_devices("CPU")[0], tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [two, two])
        from macaron_tf.kernels import native
        native._compile = None
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        x = tf.random.stateless_normal((4, 6, 10), (1, 2))
        with strategy.scope():
            vectors = [tf.Variable(tf.ones(5)) for _ in range(4)]
        def gradient(x):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(native.gated(x, *vectors, 1, "gelu") ** 2)
            return tape.gradient(y, vectors)
        @tf.function
        def step(parts):
            found = strategy.run(gradient, (parts,))
            return [strategy.reduce("SUM", one, axis=None) for one in found]
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: x[2 * context.replica_id_in_sync_group :][:2])
        for actual, expected in zip(step(parts), gradient(x)):
            np.testing.assert_allclose(actual, expected, rtol=1e-5)
        print("equal")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert run.stdout == "equal\n", run.stderr
