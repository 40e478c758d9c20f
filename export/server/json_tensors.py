"""Conversion between JSON and columns by the rules of TensorFlow Serving's predict API."""

import json
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from export.server.errors import ServingError
from export.server.servable import DEFAULT_SIGNATURE, Arrays
from macaron_tf.errors import parse_json
from macaron_tf.io.serving import as_json, as_rows


def decode_request(
    body: bytes | bytearray, signatures: Mapping[str, Mapping[str, tf.DType]], max_rows: int
) -> tuple[str, Arrays, bool]:
    """Converts a predict request to a signature name and its input columns `(B,)`.

    The body is a JSON object with the key "instances" (row format) or "inputs" (column format).
    The third result tells whether it is in row format.
    """
    try:
        document = parse_json(bytes(body))
    except ValueError as error:
        raise ServingError(400, f"the body is no JSON object: {error}") from None
    signature = document.get("signature_name") or DEFAULT_SIGNATURE
    if not isinstance(signature, str) or signature not in signatures:
        names = ", ".join(sorted(signatures))
        raise ServingError(400, f"signature_name is not a signature: choose one of {names}")
    dtypes = signatures[signature]
    has_rows = "instances" in document
    if has_rows == ("inputs" in document):
        raise ServingError(400, "the body must have either the key 'instances' or the key 'inputs'")
    value = document["instances" if has_rows else "inputs"]
    columns = _columns_of_rows(value, [*dtypes]) if has_rows else value
    if not isinstance(columns, dict) and len(dtypes) == 1:
        columns = dict.fromkeys(dtypes, columns)
    if not isinstance(columns, dict) or columns.keys() != dtypes.keys():
        message = f"'inputs' is {_quoted(columns)}, not an object with {', '.join(dtypes)}"
        raise ServingError(400, message)
    arrays = {name: _to_array(columns[name], dtypes[name], name) for name in dtypes}
    counts = {name: len(array) for name, array in arrays.items()}
    if len({*counts.values()}) > 1:
        raise ServingError(400, f"the inputs have different numbers of rows: {counts}")
    if not 0 < (count := min(counts.values())) <= max_rows:
        raise ServingError(400, f"the request has {count} rows: send 1 to {max_rows} rows")
    return signature, arrays, has_rows


def _columns_of_rows(rows: Any, names: list[str]) -> dict[str, list]:
    """Converts "instances", whose rows are objects or the values of a single input, to columns."""
    if not isinstance(rows, list):
        raise ServingError(400, f"'instances' is {_quoted(rows)}, not a list")
    if len(names) == 1 and not any(isinstance(row, dict) for row in rows):
        return {names[0]: rows}
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != {*names}:
            message = f"instance {index} is {_quoted(row)}, not an object with {', '.join(names)}"
            raise ServingError(400, message)
    return {name: [row[name] for row in rows] for name in names}


def encode_outputs(outputs: Arrays, row_format: bool) -> bytes:
    """Converts outputs to the JSON body of a response.

    In row format, "predictions" is a list with an object for each instance; in column format,
    "outputs" is a single object. A single output replaces the object. In strings, bytes that are
    not UTF-8 become U+FFFD.
    """
    if row_format:
        return json.dumps({"predictions": as_rows(outputs)}, ensure_ascii=False).encode()
    columns: Any = {name: as_json(array) for name, array in outputs.items()}
    if len(columns) == 1:
        [columns] = columns.values()
    return json.dumps({"outputs": columns}, ensure_ascii=False).encode()


def _quoted(value: Any) -> str:
    """Returns the short form of a JSON value in which error messages quote it."""
    return reprlib.repr(value)


def _to_array(values: Any, dtype: tf.DType, name: str) -> np.ndarray:
    """Converts a JSON list of values to a column `(B,)`."""
    if not isinstance(values, list):
        raise ServingError(400, f"input {name!r} is {_quoted(values)}, not a list")
    for value in values:
        if not _fits(value, dtype):
            message = f"input {name!r}: {_quoted(value)} is not a value of type {dtype.name}"
            raise ServingError(400, message)
    if dtype != tf.string:
        return np.array(values, dtype.as_numpy_dtype)
    try:
        return np.array([value.encode() for value in values], np.object_)
    except UnicodeEncodeError:  # half of a surrogate pair, such as "\ud800"
        message = f"input {name!r}: a string has an unpaired surrogate, which UTF-8 cannot encode"
        raise ServingError(400, message) from None


def _fits(value: Any, dtype: tf.DType) -> bool:
    """Returns whether a JSON value is a string or in the range of a number's dtype."""
    if dtype == tf.string:
        return isinstance(value, str)
    number = int if dtype.is_integer else int | float
    # NaN, which Python's JSON has, is allowed.
    return isinstance(value, number) and not (
        isinstance(value, bool) or abs(value) > float(dtype.max)
    )
