"""The memory of a process."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, which glibc does not do by itself.

    It keeps 0.6 GB after a vocabulary of a million lines, 80 MB after planning an epoch of 4.5
    million pairs.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
