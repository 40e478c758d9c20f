"""Selection of a kernel implementation, by device and graph or by name."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from macaron_tf.errors import UserError, check_choice

NAMES = ("scan", "loop", "xla", "native")

_scoped_implementation: contextvars.ContextVar[str] = contextvars.ContextVar(
    "implementation", default="auto"
)


@contextlib.contextmanager
def scoped(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[Any]:
    """Sets a context variable in a `with` block, and yields the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def implementation_scope(name: str) -> contextlib.AbstractContextManager:
    """Sets the implementation of kernels in a `with` block, to a name in `NAMES` or `"auto"`.

    The name applies to kernels that are called with the implementation `"auto"` or `"stock"`.
    """
    return scoped(_scoped_implementation, check_choice("implementation", name, ("auto", *NAMES)))


def select_implementation(implementation: str, dtype: str) -> str:
    """Returns the name of the implementation in `NAMES` for the caller's device and graph.

    An enclosing `implementation_scope` overrides `"auto"` and `"stock"`. On TensorFlow, `"auto"`
    selects `"xla"` in a graph that XLA compiles, `"native"` for float32 and bfloat16 on a CPU with
    a C++ compiler, and otherwise `"loop"`. `"stock"` never selects `"native"`: a process without
    this library cannot load a graph with native ops. On other backends, both select `"loop"`.
    """
    check_choice("implementation", implementation, ("auto", "stock", *NAMES))
    name = implementation
    if name in ("auto", "stock") and _scoped_implementation.get() != "auto":
        name = _scoped_implementation.get()
    if keras.backend.backend() != "tensorflow":
        if name in ("xla", "native"):
            raise ValueError(f"implementation={name!r} needs TensorFlow: choose 'scan' or 'loop'")
        return "loop" if name in ("auto", "stock") else name
    if name == "native":
        from macaron_tf.kernels import native

        if native.operations() is None:
            raise UserError("this machine has no native kernels (see the log): install a compiler")
    if name in NAMES:
        return name
    import tensorflow as tf

    if compiled_by_xla():
        return "xla"
    if name == "stock" or any(
        tf.config.list_logical_devices(device_type) for device_type in ("GPU", "TPU")
    ):
        return "loop"
    from macaron_tf.kernels import native

    return "native" if dtype in native.DTYPES and native.operations() else "loop"


def runs_native(x) -> bool:
    """Returns whether `"auto"` selects a native kernel for the tensor `x`."""
    return select_implementation("auto", keras.backend.standardize_dtype(x.dtype)) == "native"


def compiled_by_xla() -> bool:
    """Returns whether XLA compiles the graph: any on JAX, for a TPU or with `jit_compile=True`."""
    if keras.backend.backend() == "jax":
        return True
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util  # TensorFlow has no public function for it

    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def runs_fused(dtype: str, head_dim: int) -> bool:
    """Returns whether attention runs in one fused kernel.

    It needs JAX, an NVIDIA GPU from Ampere on, bfloat16 or float16, and a head size of 16, 32, 64
    or 128. An `implementation_scope` with a name turns it off.
    """
    if (
        _scoped_implementation.get() != "auto"
        or keras.backend.backend() != "jax"
        or dtype not in ("bfloat16", "float16")
    ):
        return False
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu" or head_dim not in (16, 32, 64, 128):
        return False
    # On NVIDIA GPUs this is a string such as "9.0". AMD GPUs, on which the kernel is untested, have
    # strings such as "gfx90a".
    major_version = device.compute_capability.split(".")[0]
    return major_version.isdecimal() and int(major_version) >= 8
