"""The memory of a device, and networks that do not fit into it."""

import contextlib
import pathlib
import re
import resource
from collections.abc import Iterator

import tensorflow as tf

from macaron_tf.errors import UserError

# Where Linux says how much memory a control group's processes may take (versions 2 and 1).
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_memory() -> int | None:
    """Bytes of the smallest GPU, without one of the machine; None = unknown, as of a TPU."""
    if tf.config.list_logical_devices("TPU"):
        return None
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib  # there is no public way

        devices = device_lib.list_local_devices()
        return min(one.memory_limit for one in devices if one.device_type == "GPU")
    return _machine_memory("MemTotal")


def peak_memory() -> int | None:
    """Bytes that this process has held at most; None where the system does not say, off Linux.

    `getrusage` would count what the parent process held at the start.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", _read("/proc/self/status"))
    return int(found[1]) * 1024 if found else None


def limit_memory() -> None:
    """Lets allocations beyond this machine's memory fail, where a process computes on its CPU.

    Linux would grant them, and kill the process when it fills them.
    """
    memory = _machine_memory("MemTotal", "SwapTotal")
    elsewhere = tf.config.get_visible_devices("GPU") or tf.config.list_logical_devices("TPU")
    if memory is not None and not elsewhere:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or memory < most:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, most))


def _machine_memory(*kinds: str) -> int | None:
    """The sum of lines of /proc/meminfo, or a control group's limit; None = not on Linux."""
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
    """Refuses weights made within the `with` that do not fit, before their memory is taken.

    Args:
        place: the model's name in the sentence.
        copies: values kept for each trained weight; Adam's training has four, the weight, its
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
    """Lets variables made within the `with` have shapes and types alone, and take no memory."""
    from tensorflow.python.ops import resource_variable_ops  # there is no public way

    def create(next_creator, **options):
        value = _symbolic(options["initial_value"])
        return resource_variable_ops.UninitializedVariable(
            shape=value.shape, dtype=value.dtype, trainable=options.get("trainable", True)
        )

    with tf.variable_creator_scope(create):
        yield


def _symbolic(value) -> tf.Tensor:
    """A variable's initial value with a shape and a type alone."""
    # A plain graph takes no values from outside.
    with tf.__internal__.FuncGraph("sizes").as_default():
        return value() if callable(value) else tf.convert_to_tensor(value)


def _sentence(place: str, options: dict, shape: str, needed: int | str, memory: int) -> str:
    size = f"{needed / 2**30:,.1f} GiB" if isinstance(needed, int) else f"{needed} bytes"
    return (
        f"{place} does not fit: its weights need {size} or more, and there are "
        f"{memory / 2**30:,.1f} GiB; {options['name']} has {shape}: lower the model's sizes or its "
        "vocabulary's"
    )
