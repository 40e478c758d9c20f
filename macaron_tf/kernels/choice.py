"""Selection of a kernel's implementation: by device and graph, or by name."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

from macaron_tf.errors import check_choice

NAMES = ("scan", "loop", "xla", "native")

_named: contextvars.ContextVar[str] = contextvars.ContextVar("implementation", default="auto")


@contextlib.contextmanager
def implementation_scope(name: str) -> Iterator[None]:
    """Within this context, kernels called with `"auto"` or `"stock"` use the named implementation.

    Args:
        name: one of `NAMES`, or `"auto"`.
    """
    check_choice("implementation", name, ("auto", *NAMES))
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def chosen(implementation: str, dtype: str) -> str:
    """Returns the implementation to use for the caller's device and graph, one of `NAMES`.

    Args:
        implementation: one of `NAMES`, which is returned; `"auto"`: that of an enclosing
            `implementation_scope`, otherwise `"xla"` in graphs that XLA compiles, `"native"` on
            CPUs with a compiler in float32 and bfloat16, and `"loop"` elsewhere; `"stock"`: like
            `"auto"` but never `"native"`, whose ops are unknown to processes without this library.
        dtype: dtype of the kernel's input.

    Raises:
        ValueError: the name is unknown, or needs TensorFlow under another Keras backend.
    """
    check_choice("implementation", implementation, ("auto", "stock", *NAMES))
    name = implementation
    if name in ("auto", "stock") and _named.get() != "auto":
        name = _named.get()
    if keras.backend.backend() != "tensorflow":
        if name in ("xla", "native"):
            raise ValueError(f"implementation {name!r} needs TensorFlow: take 'scan' or 'loop'")
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
    """Whether a native kernel would be selected for the tensor x."""
    return chosen("auto", keras.backend.standardize_dtype(x.dtype)) == "native"


def compiled_by_xla() -> bool:
    """Whether XLA compiles the current graph: on JAX, under `jit_compile=True`, or for a TPU."""
    if keras.backend.backend() == "jax":
        return True
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util  # there is no public way

    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def runs_fused(dtype: str, head_dim: int) -> bool:
    """Whether attention runs in one fused kernel: on JAX, an NVIDIA GPU since Ampere, 16 bits."""
    if keras.backend.backend() != "jax" or dtype not in ("bfloat16", "float16"):
        return False
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu" or head_dim not in (16, 32, 64, 128):
        return False
    # NVIDIA: such as "9.0". AMD, where the kernel was not tried: such as "gfx90a".
    number = device.compute_capability.split(".")[0]
    return number.isdecimal() and int(number) >= 8
