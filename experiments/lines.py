"""Input and output of commands that print one answer for each line of input, in order."""

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from macaron_tf.cli.program import decoded
from macaron_tf.errors import LineError, TextError, UserError
from macaron_tf.io import paths as storage

CHUNK = 256  # maximum number of lines that are answered together


def arriving(lines: Iterator[str], max_lines: int = CHUNK) -> Iterator[list[str]]:
    """Yields lines in chunks of at most `max_lines` lines, without waiting for a chunk to fill.

    A person who types a line therefore gets the answer at once.
    """
    arrived: queue.Queue = queue.Queue(maxsize=4 * max_lines)

    def read():
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    chunk: list[str] = []
    while True:
        try:
            # The lines of a file arrive within microseconds of each other. Typed lines are slower.
            line = arrived.get(timeout=0.02) if chunk else arrived.get()
        except queue.Empty:
            yield chunk
            chunk = []
            continue
        chunk += [line] if isinstance(line, str) else []
        if chunk and (not isinstance(line, str) or len(chunk) == max_lines):
            yield chunk
            chunk = []
        if isinstance(line, Exception):
            raise line
        if line is None:
            return


@contextlib.contextmanager
def opened_input(path: str | None, flag: str = "--input") -> Iterator[BinaryIO]:
    """Opens the file `path`, or stdin if `path` is `None`. `flag` is for the error message."""
    if path is None:
        # A reader of its own, because a thread that waits in `sys.stdin` at the end of the process,
        # as after Ctrl-C, would abort the interpreter.
        try:
            descriptor = sys.stdin.fileno()
        except OSError:  # a stream in memory
            yield sys.stdin.buffer
        else:
            yield os.fdopen(descriptor, "rb", closefd=False)
        return
    with contextlib.ExitStack() as stack:
        with storage.clear_errors(f"{flag} {path} cannot be read", "check the path"):
            file = stack.enter_context(storage.as_path(path).open("rb"))
            file.read(0)  # a bucket reports a missing file at the first read
        yield file


def opened_output(path: str | None) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens the file `path` for writing, or stdout if `path` is `None`.

    The data go to a temporary file, which is renamed to `path` when the file is closed. An
    interrupted command therefore leaves no incomplete file `path`.
    """
    return storage.open_atomic(path) if path else contextlib.nullcontext(sys.stdout.buffer)


def json_line(answer: Any) -> str:
    return f"{json.dumps(answer, ensure_ascii=False)}\n"


# Function that yields the parts of the answers to a chunk of lines. Its arguments are the lines and
# the number of the first line, counted from 1.
Answer = Callable[[list[str], int], Iterable[str]]


def answer_lines(
    texts: Sequence[str], input_path: str | None, output_path: str | None, answer: Answer
) -> None:
    """Answers texts or, if there are none, the lines of a file, and writes the answers in order.

    The lines are processed in chunks, as `arriving` yields them. The path `None` means stdin or
    stdout. The error message about an invalid line names the input file and the line number.
    """
    first_number = 1
    source = "" if texts else f"{input_path or 'standard input'}, "
    given = contextlib.nullcontext() if texts else opened_input(input_path)
    with given as lines, opened_output(output_path) as out:
        for chunk in [[*texts]] if texts else arriving(decoded(lines)):
            try:
                for part in answer(chunk, first_number):
                    out.write(part.encode())
                    out.flush()
            except TextError as error:
                noun = "text" if texts else "line"
                number = first_number + error.number - 1
                raise UserError(f"{source}{noun} {number}: {error.reason}") from error
            except LineError as error:
                raise UserError(f"{source}{error}") from error
            first_number += len(chunk)
