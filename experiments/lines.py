"""Input and output of commands that print one answer for each line of input, in order."""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from macaron_tf.cli.program import decoded
from macaron_tf.errors import TextError, UserError
from macaron_tf.io import paths as storage

CHUNK = 256  # maximum number of lines that are answered together


def arriving(lines: Iterator[str], most: int = CHUNK) -> Iterator[list[str]]:
    """Yields lines in chunks of at most `most` lines, without waiting for a chunk to fill.

    A person who types a line therefore gets the answer at once.
    """
    waiting: queue.Queue = queue.Queue(maxsize=4 * most)
    end: list[Exception] = []  # the exception that ended reading, if any

    def read():
        try:
            for line in lines:
                waiting.put(line)
        except Exception as error:
            end.append(error)
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    chunk: list[str] = []
    while True:
        try:
            # The lines of a file arrive within microseconds of each other. Typed lines are slower.
            line = waiting.get(timeout=0.02) if chunk else waiting.get()
        except queue.Empty:
            line = None
        if isinstance(line, str):
            chunk.append(line)
        if chunk and (line is None or line is end or len(chunk) == most):
            yield chunk
            chunk = []
        if line is end:
            if end:
                raise end[0]
            return


@contextlib.contextmanager
def opened_input(name: str | None, flag: str = "--input") -> Iterator[BinaryIO]:
    """Opens the file `name`, or stdin if `name` is `None`.

    Args:
        name: path of the file; `None` means stdin.
        flag: flag that gives `name`, for error messages.
    """
    if name is None:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        with storage.clear_errors(f"{flag} {name} cannot be read", "check the path"):
            file = stack.enter_context(storage.as_path(name).open("rb"))
            file.read(0)  # a bucket reports a missing file at the first read
        yield file


@contextlib.contextmanager
def opened_output(name: str | None) -> Iterator[BinaryIO | storage.OutputFile]:
    """Opens the file `name` for writing, or stdout if `name` is `None`.

    The data go to a temporary file, which is renamed to `name` when the file is closed. An
    interrupted command therefore leaves no incomplete file `name`.
    """
    if name is None:
        yield sys.stdout.buffer
        return
    with storage.open_aside(name) as file:
        yield file


def json_line(answer: Any) -> str:
    return f"{json.dumps(answer, ensure_ascii=False)}\n"


def refuse_beside_json(mend: str, **flags: Any) -> None:
    """Raises a `UserError` if a flag is set that `--json` does not support.

    Args:
        mend: end of the error message, which says what to do.
        flags: value of each flag; a true value means that the flag is set.
    """
    if given := [name for name, value in flags.items() if value]:
        flag = given[0].replace("_", "-")
        raise UserError(f"--{flag} cannot be combined with --json: {mend}")


def answer_lines(
    given: str | None, output: str | None, answer: Callable[[list[str], int], str]
) -> None:
    """Reads lines, computes an answer to each line, and writes the answers in order.

    The function processes the lines in chunks, as `arriving` yields them.

    Args:
        given: file to read lines from; `None` means stdin.
        output: file for the answers; `None` means stdout.
        answer: function that returns the answers to a chunk of lines as one text. Its arguments are
            the lines and the line number of the first line, counted from 1.
    """
    first = 1
    with opened_input(given) as lines, opened_output(output) as out:
        for chunk in arriving(decoded(lines)):
            try:
                answers = answer(chunk, first)
            except TextError as error:
                number = first + error.number - 1
                raise UserError(f"line {number}: {error.reason}") from error
            out.write(answers.encode())
            out.flush()
            first += len(chunk)


def answer_json(
    given: str | None, output: str | None, predict: Callable[[list[str]], list[Any]]
) -> None:
    """Reads lines, computes an answer to each line, and writes each answer as a line of JSON.

    Args:
        given, output: see `answer_lines`.
        predict: function that returns a list with one answer for each line.
    """
    answer_lines(given, output, lambda lines, _: "".join(map(json_line, predict(lines))))
