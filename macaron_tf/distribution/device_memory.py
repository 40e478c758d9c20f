"""Device memory, and errors for networks that exceed the device memory."""

import contextlib
import pathlib
import re
from collections.abc import Iterator

import tensorflow as tf

from macaron_tf.errors import UserError

# Files with the memory limit of the process's Linux control group (versions 2 and 1).
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_memory() -> int | None:
    """Returns the memory size in bytes of the device that runs the network.

    The result is the memory of the smallest GPU. On a machine without a GPU, the result is the main
    memory, or the memory limit of the process's control group if this limit is lower. Returns
    `None` if the size is unknown, for example on a TPU.
    """
    if tf.config.list_logical_devices("TPU"):
        return None
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib  # no public API has this limit

        devices = device_lib.list_local_devices()
        return min(device.memory_limit for device in devices if device.device_type == "GPU")
    return _machine_memory("MemTotal")


def peak_memory() -> int | None:
    """Returns the peak memory of this process in bytes, or `None` on systems other than Linux.

    The value is read from `/proc`, because `getrusage` includes memory of the parent process.
    """
    match = re.search(r"VmHWM:\s*(\d+) kB", _read("/proc/self/status"))
    return int(match[1]) * 1024 if match else None


def _machine_memory(*entries: str) -> int | None:
    """Returns the sum of `entries` in /proc/meminfo, in bytes.

    If the process's control group has a lower memory limit, returns this limit. Returns `None` if
    the system has neither /proc/meminfo nor such a limit.
    """
    sizes = [int(text) for text in map(_read, _LIMITS) if text.strip().isdigit()]
    lines = re.findall(r"(\w+):\s*(\d+) kB", _read("/proc/meminfo"))
    if lines:
        sizes.append(sum(int(size) * 1024 for entry, size in lines if entry in entries))
    return min(sizes, default=None)


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def refuse_oversize(model_name: str = "the model", copies: int = 1) -> Iterator[None]:
    """Raises a UserError if the variables created in the `with` block exceed the device memory.

    Each TensorFlow variable is checked before its memory is allocated. Nothing is checked on
    Keras's JAX backend, or if the memory size is unknown.

    Args:
        model_name: name of the model in the error message.
        copies: number of values stored for each trainable weight. Training with Adam stores four
            values, which are the weight, its gradient and two moments.

    Raises:
        UserError: the variables need more bytes than `device_memory` returns.
    """
    capacity, required_bytes = device_memory(), 0

    def create(next_creator, **options):
        nonlocal required_bytes
        value, shape = options["initial_value"], "(too large for TensorFlow)"
        if capacity is not None:
            try:
                value = _symbolic(value)
                shape = str(tuple(value.shape))
                num_values = copies if options.get("trainable", True) else 1
                required_bytes += num_values * value.shape.num_elements() * value.dtype.size
            except (ValueError, OverflowError) as error:
                # An initializer may also raise such an error for another reason.
                if not re.search("used for shape|int too large", str(error)):
                    raise
                raise UserError(_sentence(model_name, options, shape, "2^63", capacity)) from error
            if required_bytes > capacity:
                raise UserError(_sentence(model_name, options, shape, required_bytes, capacity))
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


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


def _sentence(
    model_name: str, options: dict, shape: str, required_bytes: int | str, capacity: int
) -> str:
    size = (
        f"{required_bytes / 2**30:,.1f} GiB"
        if isinstance(required_bytes, int)
        else f"{required_bytes} bytes"
    )
    return (
        f"{model_name} does not fit into memory, because it needs at least {size} and the memory "
        f"has {capacity / 2**30:,.1f} GiB (the weight {options['name']} has the shape {shape}): "
        "reduce the model's dimensions or its vocabulary size, or use a device with more memory"
    )
