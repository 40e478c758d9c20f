"""Peak memory of this process, and networks without values."""

import contextlib
import pathlib
import re
from collections.abc import Iterator

import tensorflow as tf


def peak_memory() -> int | None:
    """Returns the peak memory of this process in bytes, or `None` on systems other than Linux.

    The value is read from `/proc`, because `getrusage` includes memory of the parent process.
    """
    status = pathlib.Path("/proc/self/status")
    match = re.search(r"VmHWM:\s*(\d+) kB", status.read_text() if status.exists() else "")
    return int(match[1]) * 1024 if match else None


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Gives no value to the TensorFlow variables that the code in the `with` block creates.

    A variable without a value has a shape and a dtype, and takes no memory.
    """
    from tensorflow.python.ops import resource_variable_ops  # no public API makes such variables

    def create(next_creator, **options):
        value = _symbolic(options["initial_value"])
        return resource_variable_ops.UninitializedVariable(
            shape=value.shape, dtype=value.dtype, trainable=options.get("trainable", True)
        )

    with tf.variable_creator_scope(create):
        yield


def _symbolic(value) -> tf.Tensor:
    """Returns a symbolic tensor with the shape and dtype of a variable's initial value."""
    # Unlike a plain tf.Graph, a FuncGraph can capture values from outside the graph.
    with tf.__internal__.FuncGraph("sizes").as_default():
        return value() if callable(value) else tf.convert_to_tensor(value)
