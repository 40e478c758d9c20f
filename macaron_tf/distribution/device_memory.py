"""Memory of the devices, and errors for networks that do not fit into it."""

import contextlib
import pathlib
import re
import resource
from collections.abc import Iterator

import tensorflow as tf

from macaron_tf.errors import UserError

# Files with the memory limit of the process's control group on Linux (versions 2 and 1).
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_memory() -> int | None:
    """Bytes of memory of the smallest GPU, or of the machine if there is none.

    None: unknown, as for a TPU.
    """
    if tf.config.list_logical_devices("TPU"):
        return None
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib  # there is no public way

        devices = device_lib.list_local_devices()
        return min(one.memory_limit for one in devices if one.device_type == "GPU")
    return _machine_memory("MemTotal")


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None if not on Linux.

    `getrusage` is not used, because it counts memory of the parent process as well.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", _read("/proc/self/status"))
    return int(found[1]) * 1024 if found else None


def limit_memory() -> None:
    """Makes allocations beyond the machine's memory fail in a process that computes on the CPU.

    By default, Linux grants them and kills the process when it uses them.
    """
    memory = _machine_memory("MemTotal", "SwapTotal")
    elsewhere = tf.config.get_visible_devices("GPU") or tf.config.list_logical_devices("TPU")
    if memory is not None and not elsewhere:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or memory < most:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, most))


def _machine_memory(*kinds: str) -> int | None:
    """Sum of the `kinds` of /proc/meminfo, at most the control group's limit; None off Linux."""
    sizes = [int(text) for text in map(_read, _LIMITS) if text.strip().isdigit()]
    lines = re.findall(r"(\w+):\s*(\d+) kB", _read("/proc/meminfo"))
    if lines:
        sizes.append(sum(int(size) * 1024 for kind, size in lines if kind in kinds))
    return min(sizes, default=None)


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def refuse_oversize(place: str = "the model", copies: int = 1) -> Iterator[None]:
    """Context in which variables that do not fit into memory raise before it is allocated.

    Args:
        place: the model's name in the error message.
        copies: values kept for each trained weight. Training with Adam keeps four: the weight, its
            gradient and two moments.

    Raises:
        UserError: the weights need more than `device_memory`.
    """
    memory, needed = device_memory(), 0

    def create(next_creator, **options):
        nonlocal needed
        value, shape = options["initial_value"], "a shape that TensorFlow cannot hold"
        if memory is not None:
            try:
                value = _symbolic(value)
                shape = str(tuple(value.shape))
                kept = copies if options.get("trainable", True) else 1
                needed += kept * value.shape.num_elements() * value.dtype.size
            except (ValueError, OverflowError, tf.errors.InvalidArgumentError) as error:
                raise UserError(_sentence(place, options, shape, "too many", memory)) from error
            if needed > memory:
                raise UserError(_sentence(place, options, shape, needed, memory))
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Context in which variables have a shape and a dtype but no values, and take no memory."""
    from tensorflow.python.ops import resource_variable_ops  # there is no public way

    def create(next_creator, **options):
        value = _symbolic(options["initial_value"])
        return resource_variable_ops.UninitializedVariable(
            shape=value.shape, dtype=value.dtype, trainable=options.get("trainable", True)
        )

    with tf.variable_creator_scope(create):
        yield


def _symbolic(value) -> tf.Tensor:
    """A symbolic tensor with the shape and dtype of a variable's initial value."""
    # A FuncGraph, because a plain graph cannot capture values from outside.
    with tf.__internal__.FuncGraph("sizes").as_default():
        return value() if callable(value) else tf.convert_to_tensor(value)


def _sentence(place: str, options: dict, shape: str, needed: int | str, memory: int) -> str:
    size = f"{needed / 2**30:,.1f} GiB" if isinstance(needed, int) else f"{needed} bytes"
    return (
        f"{place} does not fit: its weights need {size} or more, and there are "
        f"{memory / 2**30:,.1f} GiB; {options['name']} has {shape}: lower the model's sizes or its "
        "vocabulary's"
    )
