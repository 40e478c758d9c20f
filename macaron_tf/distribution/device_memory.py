"""Peak memory of this process."""

import pathlib
import re


def peak_memory() -> int | None:
    """Returns the peak memory of this process in bytes, or `None` on systems other than Linux.

    The value is read from `/proc`, because `getrusage` includes memory of the parent process.
    """
    status = pathlib.Path("/proc/self/status")
    match = re.search(r"VmHWM:\s*(\d+) kB", status.read_text() if status.exists() else "")
    return int(match[1]) * 1024 if match else None
