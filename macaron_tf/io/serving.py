"""Conventions of TensorFlow Serving for version folders, JSON outputs and error messages."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

# Patterns for error messages of any assertion, and of `macaron_tf.tasks.base.require` in a graph or
# in eager mode.
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\](?=\s|$)", re.S)
_CHECK = re.compile(r"assertion failed: \[(.*?)\] \[rows:\] \[([0-9 ]+)\]", re.S)
_EAGER_CHECK = re.compile(r"Summarized data: b['\"](.*?)['\"]\nb'rows:'\n([0-9, ]+)", re.S)
# Parts of TensorFlow's messages to remove: node names, values and stack traces.
_PREAMBLE = re.compile(r"Graph execution error:\s+|\d+ root error\(s\) found\.\s+\(0\) \w+: ")
_TRACE = re.compile(
    r"\s*(\[\[|\n\s*\(1\) |\n\n(Original stack|Errors may have originated|Stack trace)|\[Op:)"
)

MODEL_FILE = "saved_model.pb"
EXTRA, RECORD = "assets.extra", "export.json"  # a version's folder for extra files; its record
EXAMPLE = "A dog is running."  # example text for any model
# Example texts for inputs that are read beside another text.
EXAMPLE_TEXTS = {
    "second": "A pet moves.",
    "question": "What is running?",
    "choice1": "A pet moves.",
    "choice2": "Nobody is outside.",
}
# Default values of the inputs that control a text generator.
CONTROLS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 128}
MAX_TOKENS = 1024  # maximum number of tokens that an export writes


def version_of(name: str) -> int | None:
    """Returns the version number in a folder name, or `None` if the name is not a version."""
    is_number = name.isascii() and name.isdigit() and len(name) < 40
    return int(name) if is_number and int(name) < 2**63 else None  # versions are int64


def as_json(array: np.ndarray) -> Any:
    """Converts an array to nested lists of JSON values."""
    if array.dtype == np.object_:
        # JSON must be UTF-8, so other bytes become U+FFFD.
        decode = functools.partial(bytes.decode, errors="replace")
        decoded = np.fromiter(map(decode, array.flat), np.object_, array.size)
        return decoded.reshape(array.shape).tolist()
    if array.dtype in (np.float64, np.bool_) or np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    if array.dtype not in (np.float16, np.float32):  # bfloat16 and the float8s
        array = array.astype(np.float32)
    # As in TensorFlow Serving, a float32 is printed as the shortest text that identifies it, "0.2".
    # Converted to float64 directly, it would be 0.20000000298023224.
    numbers, flat = np.empty(array.size), array.reshape(-1)
    for start in range(0, array.size, 2048):  # in chunks, so that other threads can run in between
        part = slice(start, start + 2048)
        numbers[part] = flat[part].astype("U32")
    return numbers.reshape(array.shape).tolist()


def as_rows(outputs: Mapping[str, np.ndarray]) -> list[Any]:
    """Converts outputs `(B, ...)` to B JSON values, or dicts of several outputs."""
    columns = {name: as_json(array) for name, array in outputs.items()}
    if len(columns) == 1:
        [rows] = columns.values()
        return rows
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def failed_check(message: str) -> str | None:
    """Extracts the message of a failed check from TensorFlow's error message, or returns `None`.

    A check is a call of `tasks.base.require`. Assertions of a network are errors, not checks.
    """
    match = _CHECK.search(message) or _EAGER_CHECK.search(message)
    return match[1] if match else None


def cause_of(error: BaseException) -> str:
    """Extracts the cause from the message of an error that TensorFlow may have raised.

    It is the message of a failed assertion, or of the first error, without stack traces, or the
    name of the error's class.
    """
    message = str(getattr(error, "message", error))
    if assertion := _ASSERTION.search(message):
        return assertion[1] or type(error).__name__
    if "\nNode: " in message:  # the line with the node's name ends the stack traces
        message = message.rpartition("\nNode: ")[2].partition("\n")[2]
    cause = _TRACE.split(_PREAMBLE.sub("", message), maxsplit=1)[0].strip()
    return cause or type(error).__name__


def failed_rows(message: str) -> set[int]:
    """Returns the indices of rows in TensorFlow's error message for a failed check.

    They are not reliable, because a text in the message may look like a list of indices.
    """
    match = _CHECK.search(message)
    return set(map(int, re.findall(r"\b\d{1,9}\b", match[2]))) if match else set()
