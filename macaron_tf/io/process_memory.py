"""The memory of a process."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Returns freed memory to the operating system, which glibc does not do by itself.

    Otherwise the process keeps 0.6 GB after training a vocabulary on a million lines, and 80 MB
    after planning an epoch of 4.5 million pairs.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
