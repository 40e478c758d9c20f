"""Conversion between JSON and tensors by the rules of TensorFlow Serving's predict API."""

import base64
import binascii
import json
from typing import Any

import numpy as np
import tensorflow as tf

from export.server.errors import ServingError
from export.server.servable import Arrays, Signature
from macaron_tf.io.serving import as_json, as_rows

# Maximum number of commas, opening brackets and braces in a body. The parser blocks all threads,
# and needs 5 s for 16 MB of "[],[],", but 0.1 s for this number.
_MAX_VALUES = 250_000
_QUOTED = 80  # maximum number of characters of a wrong value in an error message


def parse_body(body: bytes | bytearray) -> dict[str, Any]:
    """Parses the JSON object in a request's body."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ServingError(413, f"more than {_MAX_VALUES:,} JSON values: send several requests")
    try:
        document = json.loads(body.decode())
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8 at byte {error.start}: send JSON in UTF-8"
        raise ServingError(400, message) from None
    except RecursionError:
        raise ServingError(400, "the JSON is nested too deeply: send a flat list") from None
    except ValueError as error:  # JSONDecodeError, or an integer with more than 4,300 digits
        raise ServingError(400, f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _invalid("the body is {}, not a JSON object", document)
    return document


def decode_inputs(document: dict[str, Any], signature: Signature) -> tuple[Arrays, bool]:
    """Converts a predict request to a dict of arrays, and returns whether it is in row format.

    The body has the key "instances" (row format) or "inputs" (column format).
    """
    has_rows = "instances" in document
    if has_rows == ("inputs" in document):
        raise ServingError(400, "the body must have either the key 'instances' or the key 'inputs'")
    key = "instances" if has_rows else "inputs"
    value, names = document[key], [*signature.inputs]
    if has_rows and not isinstance(value, list):
        raise _invalid("'instances' is {}, not a list", value)
    if not any(map(_is_named, value if has_rows else [value])):
        if len(names) != 1:
            raise ServingError(400, f"{key!r} names no input: send objects with {', '.join(names)}")
        columns = {names[0]: value}
    elif has_rows:
        for index, row in enumerate(value):
            if not _is_named(row) or row.keys() != signature.inputs.keys():
                raise _invalid(f"instance {index} is {{}}, not an object with {names}", row)
        columns = {name: [row[name] for row in value] for name in names}
    else:
        if value.keys() != signature.inputs.keys():
            raise _invalid(f"'inputs' has the names {{}}, but must have {names}", [*value])
        columns = value
    arrays = {
        name: _to_array(columns[name], spec.dtype, f"input {name!r}")
        for name, spec in signature.inputs.items()
    }
    return arrays, has_rows


def encode_outputs(outputs: Arrays, row_format: bool) -> bytes:
    """Converts outputs to the JSON body of a response.

    In row format, "predictions" is a list with an object for each instance; in column format,
    "outputs" is a single object. A single output replaces the object. In strings, bytes that are
    not UTF-8 become U+FFFD. Strings of an output `..._bytes` become {"b64": BASE64}.
    """
    rows = {array.shape[:1] for array in outputs.values()}
    if row_format and (len(rows) > 1 or () in rows):
        message = "the outputs do not have one row per instance: send 'inputs', not 'instances'"
        raise ServingError(400, message)
    if row_format:
        return json.dumps({"predictions": as_rows(outputs)}, ensure_ascii=False).encode()
    columns: Any = {name: as_json(name, array) for name, array in outputs.items()}
    if len(columns) == 1:
        [columns] = columns.values()
    return json.dumps({"outputs": columns}, ensure_ascii=False).encode()


def _invalid(message: str, value: Any) -> ServingError:
    """Returns an error whose message quotes a JSON value at the place of {}."""
    try:
        quoted = json.dumps(value, ensure_ascii=True)
    except (RecursionError, ValueError):
        quoted = type(value).__name__
    quoted = quoted if len(quoted) <= _QUOTED else quoted[:_QUOTED] + "..."
    return ServingError(400, message.replace("{}", quoted))


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, not a base64 string."""
    return isinstance(value, dict) and not _is_bytes(value)


def _to_array(value: Any, dtype: tf.DType, where: str) -> np.ndarray:
    """Converts a JSON value, a scalar or nested lists of scalars, to an array."""
    array = np.array(value, dtype=np.object_)  # lists with unequal lengths stay Python lists
    leaves = array.reshape(-1).tolist()
    if dtype == tf.string:
        leaves = [_to_bytes(leaf, where) for leaf in leaves]
        return np.fromiter(leaves, np.object_, len(leaves)).reshape(array.shape)
    if not (dtype.is_bool or dtype.is_integer or dtype.is_floating):
        raise ServingError(400, f"{where}: JSON cannot express the type {dtype.name}")
    for leaf in leaves:
        if not _fits(leaf, dtype):
            raise _invalid(f"{where}: {{}} is not a value of type {dtype.name}", leaf)
    if dtype.is_floating:
        leaves = [float(leaf) for leaf in leaves]
    return np.array(leaves).astype(dtype.as_numpy_dtype).reshape(array.shape)


def _fits(leaf: Any, dtype: tf.DType) -> bool:
    """Returns whether a JSON value is in the range of a boolean, integer or floating dtype."""
    if dtype.is_bool or isinstance(leaf, bool):
        return dtype.is_bool and isinstance(leaf, bool)
    if dtype.is_integer:
        return isinstance(leaf, int) and int(dtype.min) <= leaf <= int(dtype.max)
    if isinstance(leaf, float) and not np.isfinite(leaf):  # JSON of Python has NaN and Infinity
        return True
    return isinstance(leaf, int | float) and abs(leaf) <= float(dtype.max)


def _to_bytes(leaf: Any, where: str) -> bytes:
    if _is_bytes(leaf):
        try:
            return base64.b64decode(leaf["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise ServingError(400, f"{where}: the value of 'b64' is not base64") from None
    if not isinstance(leaf, str):
        raise _invalid(f"{where}: {{}} is not a string, or the lists are ragged", leaf)
    try:
        return leaf.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, such as "\ud800"
        message = f"{where}: a string has an unpaired surrogate, which UTF-8 cannot encode"
        raise ServingError(400, message) from None
