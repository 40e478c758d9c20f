"""The library of the native kernels, loaded: TensorFlow operations of our own."""

import functools
import logging

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.kernels import native_build

DTYPES = ("float32", "bfloat16")


def available() -> bool:
    """Whether this machine has the operations; the first call builds or loads them."""
    return _operations() is not None


def operations():
    """The module of the raw operations.

    Raises:
        UserError: they are not available.
    """
    found = _operations()
    if found is None:
        raise UserError(
            "the native kernels are not available here, as the log says: choose another "
            "implementation, or install a C++ compiler"
        )
    return found


@functools.cache
def _operations():
    path = native_build.library_path()
    if path is None:
        return None
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        logging.getLogger(__name__).warning(
            "the native kernels do not load, slower ones run in their place: %s", error
        )
        return None
