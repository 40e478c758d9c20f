"""TensorFlow Serving's conventions: folders of versions, and outputs as plain Python and JSON."""

import base64
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

# The error messages of `macaron_tf.tasks.base.require`.
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\](?=\s|$)", re.S)
_ROWS = re.compile(r"assertion failed: \[.*?\] \[rows:\] \[([0-9 ]+)\]", re.S)

MODEL_FILE = "saved_model.pb"
EXTRA, RECORD = "assets.extra", "export.json"  # a version's folder beside the model, and its record
EXAMPLE = "A dog is running."  # a text for models of any kind
EXAMPLE_QUESTION = "What is running?"
# Defaults of a text generator's inputs.
CONTROLS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 128}
MAX_VERSION = 2**63 - 1  # TensorFlow Serving's versions are int64


def version_of(name: str) -> int | None:
    """The number in the name of a version's folder; None for other folders."""
    known = name.isascii() and name.isdigit() and len(name) < 40 and int(name) <= MAX_VERSION
    return int(name) if known else None


def as_json(name: str, array: np.ndarray) -> Any:
    """Converts an array to nested lists of JSON values; strings of an output `..._bytes` to base64.

    Raises:
        ValueError: JSON cannot express the array's type.
    """
    if array.dtype == np.object_:
        if name.endswith("_bytes"):
            shown = lambda value: {"b64": base64.b64encode(value).decode("ascii")}  # noqa: E731
        else:  # JSON is UTF-8: other bytes become U+FFFD, so that the answer can be parsed
            shown = functools.partial(bytes.decode, errors="replace")
        shown_all = np.fromiter(map(shown, array.flat), np.object_, array.size)
        return shown_all.reshape(array.shape).tolist()
    if array.dtype in (np.float64, np.bool_) or np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    if np.iscomplexobj(array):
        raise ValueError(f"output {name!r}: JSON cannot express the type {array.dtype}")
    if array.dtype not in (np.float16, np.float32):  # bfloat16 and the float8s
        array = array.astype(np.float32)
    # The shortest text of a float32 ("0.2"), as TensorFlow Serving prints it: through float64
    # alone it would read 0.20000000298023224.
    numbers, flat = np.empty(array.size), array.reshape(-1)
    for start in range(0, array.size, 2048):  # other threads run between
        part = slice(start, start + 2048)
        numbers[part] = flat[part].astype("U32")
    return numbers.reshape(array.shape).tolist()


def as_rows(outputs: Mapping[str, np.ndarray]) -> list[Any]:
    """Converts outputs `(B, ...)` to B answers: dictionaries, or the values of a single output."""
    columns = {name: as_json(name, array) for name, array in outputs.items()}
    if len(columns) == 1:
        [rows] = columns.values()
        return rows
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def failed_check(message: str) -> str | None:
    """The sentence of a check that failed in a graph; None for other errors of TensorFlow."""
    found = _ASSERTION.search(message)
    return found[1] if found else None


def failed_rows(message: str) -> set[int]:
    """The row numbers in the message of a failed check; a text in it can imitate them."""
    found = _ROWS.search(message)
    return set(map(int, re.findall(r"\b\d{1,9}\b", found[1]))) if found else set()
