"""Input and output of commands that print one answer for each line of input, in order."""

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from macaron_tf.cli.program import decoded
from macaron_tf.errors import LineError, TextError, UserError
from macaron_tf.io import paths as storage

CHUNK = 256  # maximum number of lines that are answered together


def arriving(file: BinaryIO) -> Iterator[list[str]]:
    """Yields the lines of a file in chunks, of one line each for a person who types."""
    is_typed = file is sys.stdin.buffer and file.isatty()
    lines, size = decoded(file), 1 if is_typed else CHUNK
    while chunk := list(itertools.islice(lines, size)):
        yield chunk


@contextlib.contextmanager
def opened_input(path: str | None) -> Iterator[BinaryIO]:
    """Opens the file `path`, or stdin if `path` is `None`."""
    if path is None:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        with storage.clear_errors(f"--input {path} cannot be read", "check the path"):
            file = stack.enter_context(storage.as_path(path).open("rb"))
            file.read(0)  # a bucket reports a missing file at the first read
        yield file


def opened_output(path: str | None) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens the file `path`, which appears when it is complete, or stdout for `None`."""
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

    The path `None` means stdin or stdout. An invalid line is named by file and number.
    """
    first_number = 1
    source = "" if texts else f"{input_path or 'standard input'}, "
    given = contextlib.nullcontext() if texts else opened_input(input_path)
    with given as lines, opened_output(output_path) as out:
        for chunk in [[*texts]] if texts else arriving(lines):
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
