"""Input and output of commands that print one answer for each line of input, in order."""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
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
    end: list[Exception] = []  # the exception that ended reading, if any

    def read():
        try:
            for line in lines:
                arrived.put(line)
        except Exception as error:
            end.append(error)
        arrived.put(end)

    threading.Thread(target=read, daemon=True).start()
    chunk: list[str] = []
    while True:
        try:
            # The lines of a file arrive within microseconds of each other. Typed lines are slower.
            line = arrived.get(timeout=0.02) if chunk else arrived.get()
        except queue.Empty:
            line = None
        if isinstance(line, str):
            chunk.append(line)
        if chunk and (line is None or line is end or len(chunk) == max_lines):
            yield chunk
            chunk = []
        if line is end:
            if end:
                raise end[0]
            return


@contextlib.contextmanager
def opened_input(path: str | None, flag: str = "--input") -> Iterator[BinaryIO]:
    """Opens the file `path`, or stdin if `path` is `None`.

    Args:
        path: path of the file; `None` means stdin.
        flag: flag that gives `path`, for error messages.

    Raises:
        UserError: the file cannot be read.
    """
    if path is None:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        with storage.clear_errors(f"{flag} {path} cannot be read", "check the path"):
            file = stack.enter_context(storage.as_path(path).open("rb"))
            file.read(0)  # a bucket reports a missing file at the first read
        yield file


@contextlib.contextmanager
def opened_output(path: str | None) -> Iterator[BinaryIO | storage.OutputFile]:
    """Opens the file `path` for writing, or stdout if `path` is `None`.

    The data go to a temporary file, which is renamed to `path` when the file is closed. An
    interrupted command therefore leaves no incomplete file `path`.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    with storage.open_atomic(path) as file:
        yield file


def json_line(answer: Any) -> str:
    return f"{json.dumps(answer, ensure_ascii=False)}\n"


def refuse_flags_with_json(mend: str, **flags: Any) -> None:
    """Raises a `UserError` if a flag is set that `--json` does not support.

    Args:
        mend: end of the error message, which says what to do.
        flags: value of each flag; a true value means that the flag is set.
    """
    if conflicting := [name for name, value in flags.items() if value]:
        flag = conflicting[0].replace("_", "-")
        raise UserError(f"--{flag} cannot be combined with --json: {mend}")


def answer_lines(
    input_path: str | None, output_path: str | None, answer: Callable[[list[str], int], str]
) -> None:
    """Reads lines, computes an answer to each line, and writes the answers in order.

    The function processes the lines in chunks, as `arriving` yields them.

    Args:
        input_path: file to read lines from; `None` means stdin.
        output_path: file for the answers; `None` means stdout.
        answer: function that returns the answers to a chunk of lines as one text. Its arguments are
            the lines and the line number of the first line, counted from 1.

    Raises:
        UserError: a file cannot be read or written, or a line is not valid. The message about a
            line names the input file and the line number.
    """
    first_number = 1
    with opened_input(input_path) as lines, opened_output(output_path) as out:
        for chunk in arriving(decoded(lines)):
            try:
                answers = answer(chunk, first_number)
            except (LineError, TextError) as error:
                problem = str(error)
                if isinstance(error, TextError):
                    problem = f"line {first_number + error.number - 1}: {error.reason}"
                raise UserError(f"{input_path or 'standard input'}, {problem}") from error
            out.write(answers.encode())
            out.flush()
            first_number += len(chunk)


def answer_json(
    input_path: str | None, output_path: str | None, predict: Callable[[list[str]], list[Any]]
) -> None:
    """Reads lines, computes an answer to each line, and writes each answer as a line of JSON.

    Args:
        input_path, output_path: see `answer_lines`.
        predict: function that returns a list with one answer for each line.
    """
    answer_lines(input_path, output_path, lambda lines, _: "".join(map(json_line, predict(lines))))
