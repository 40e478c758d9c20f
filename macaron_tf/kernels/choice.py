"""The implementation of a kernel: chosen for the place, or named."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

from macaron_tf.errors import check_choice

NAMES = ("scan", "loop", "xla", "native")

_named: contextvars.ContextVar[str] = contextvars.ContextVar("implementation", default="auto")


@contextlib.contextmanager
def implementation_scope(name: str) -> Iterator[None]:
    """Kernels called within it as `"auto"` or `"stock"` take this implementation, of `NAMES`."""
    check_choice("implementation", name, ("auto", *NAMES))
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def chosen(implementation: str, dtype: str) -> str:
    """The implementation for the device and graph of the caller, and a kernel's input dtype.

    Args:
        implementation: one of `NAMES`, which is returned, or `"auto"`: the one of an
            `implementation_scope`; else `"xla"` in graphs that XLA compiles, `"native"` on CPUs
            with a compiler, in float32 and bfloat16, and `"loop"` elsewhere; or `"stock"`: the same
            without `"native"`, whose ops a process without this library does not know.
    """
    check_choice("implementation", implementation, ("auto", "stock", *NAMES))
    name = implementation
    if name in ("auto", "stock") and _named.get() != "auto":
        name = _named.get()
    if keras.backend.backend() != "tensorflow":
        if name in ("xla", "native"):
            raise ValueError(f"implementation {name!r} is TensorFlow's; take 'scan' or 'loop'")
        return "loop" if name in ("auto", "stock") else name
    if name in NAMES:
        return name
    import tensorflow as tf

    if compiled_by_xla():
        return "xla"
    if name == "stock" or any(tf.config.list_logical_devices(k) for k in ("GPU", "TPU")):
        return "loop"
    from macaron_tf.kernels import native

    return "native" if dtype in native.DTYPES and native.available() else "loop"


def runs_native(x) -> bool:
    """Whether a native kernel is the choice for the tensor x, here and now."""
    return chosen("auto", keras.backend.standardize_dtype(x.dtype)) == "native"


def compiled_by_xla() -> bool:
    """Whether XLA compiles the graph being made: on JAX, under `jit_compile=True` or for a TPU."""
    if keras.backend.backend() == "jax":
        return True
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util  # there is no public way

    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def runs_fused(dtype: str, head_dim: int) -> bool:
    """Whether attention is one kernel here: on JAX on an NVIDIA GPU from Ampere on, in 16 bits."""
    if keras.backend.backend() != "jax" or dtype not in ("bfloat16", "float16"):
        return False
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu" or head_dim not in (16, 32, 64, 128):
        return False
    # Such as "9.0"; an AMD GPU, where the kernel was not tried, says "gfx90a".
    number = device.compute_capability.split(".")[0]
    return number.isdecimal() and int(number) >= 8
