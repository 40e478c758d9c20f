"""Release of unused memory."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Returns freed memory to the operating system, which glibc does not do by itself.

    Without this call, the process keeps 0.6 GB after training a vocabulary on a million lines, and
    80 MB after planning the batches of an epoch with 4.5 million sentence pairs.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
