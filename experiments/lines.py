"""Lines in, lines out, in order: what commands that answer line by line share."""

import contextlib
import queue
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

from macaron_tf.io import paths as storage

CHUNK = 256  # lines answered together at most


def arriving(lines: Iterator[str], most: int = CHUNK) -> Iterator[list[str]]:
    """Lines in chunks of what has come by now: a slow writer gets each answer at once.

    Args:
        lines: read in a thread of their own.
        most: lines of a chunk.
    """
    waiting: queue.Queue = queue.Queue(maxsize=4 * most)
    end = object()

    def read():
        for line in lines:
            waiting.put(line)
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    chunk: list[str] = []
    while True:
        try:
            # A file's lines come within microseconds of each other, a person's do not.
            line = waiting.get(timeout=0.02) if chunk else waiting.get()
        except queue.Empty:
            line = None
        if isinstance(line, str):
            chunk.append(line)
        if chunk and (line is None or line is end or len(chunk) == most):
            yield chunk
            chunk = []
        if line is end:
            return


def decoded(lines: BinaryIO) -> Iterator[str]:
    """Lines end at a newline alone, so that other line breakers cannot shift the order."""
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", errors="replace")
        if "�" in text and b"\xef\xbf\xbd" not in line:
            print(f"warning: line {number} is not UTF-8: bad bytes replaced", file=sys.stderr)
        yield text.rstrip("\r\n")


@contextlib.contextmanager
def opened_input(name: str | None, flag: str = "--input") -> Iterator[BinaryIO]:
    """The file of a flag, or stdin.

    Args:
        name: its name; None for stdin.
        flag: what named it, for errors.

    Raises:
        UserError: it cannot be read.
    """
    if name is None:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        with storage.clear_errors(f"{flag} {name} cannot be read", "check the path"):
            file = stack.enter_context(storage.as_path(name).open("rb"))
            file.read(0)  # a file in a bucket is looked for when it is first read
        yield file


@contextlib.contextmanager
def opened_output(name: str | None) -> Iterator[BinaryIO]:
    """The file of `--output`, which appears under its name only when it is whole, or stdout.

    Raises:
        UserError: it cannot be written.
    """
    if name is None:
        yield sys.stdout.buffer
        return
    with storage.renamed_aside(name) as aside, storage.as_path(aside).open("wb") as file:
        yield file
