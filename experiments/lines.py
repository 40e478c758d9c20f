"""Input and output of commands that answer lines of text in order."""

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

CHUNK = 256  # greatest number of lines answered together


def arriving(lines: Iterator[str], most: int = CHUNK) -> Iterator[list[str]]:
    """Yields lines in chunks of at most `most`, without waiting for a chunk to fill.

    So a person who types, or a slow program, gets each answer at once.
    """
    waiting: queue.Queue = queue.Queue(maxsize=4 * most)
    end: list[Exception] = []  # the error of reading, if there was one

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
            # Lines of a file come within microseconds of each other; lines of a person do not.
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
    """Opens the file that `flag` names; stdin if `name` is None."""
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
    """Opens the file of `--output` to write; stdout if `name` is None.

    The file is written under another name and renamed at the end.
    """
    if name is None:
        yield sys.stdout.buffer
        return
    with storage.open_aside(name) as file:
        yield file


def json_line(answer: Any) -> str:
    return f"{json.dumps(answer, ensure_ascii=False)}\n"


def refuse_beside_json(mend: str, **flags: Any) -> None:
    """Raises if any of `flags` (name to value) is set, because `--json` does not support them."""
    if given := [name for name, value in flags.items() if value]:
        flag = given[0].replace("_", "-")
        raise UserError(f"--{flag} does not go with --json: {mend}")


def answer_lines(
    given: str | None, output: str | None, answer: Callable[[list[str], int], str]
) -> None:
    """Answers the lines of `--input` or stdin in order, in the chunks of `arriving`.

    Args:
        given: file of the lines; None: stdin.
        output: file of the answers; None: stdout.
        answer: `answer(lines, number)` returns the text that answers the lines, the first of which
            has the line number `number`.
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
    """Answers lines, as `answer_lines` does, by a model's `predict`, each in a line of JSON."""
    answer_lines(given, output, lambda lines, _: "".join(map(json_line, predict(lines))))
