"""Conversion between JSON and tensors by the rules of TensorFlow Serving's predict API."""

import base64
import binascii
import collections
import json

import numpy as np
import tensorflow as tf

from export.server.errors import Code, ServingError, invalid
from export.server.servable import Signature
from macaron_tf.io.serving import as_json, as_rows

_JSON = json.JSONEncoder(ensure_ascii=False)
_QUOTED = 80  # maximum number of characters of a wrong value in an error message


def parse_body(body: bytes | bytearray, max_values: int) -> dict:
    """Parses the JSON object in a request's body.

    Args:
        body: the body of the request.
        max_values: maximum number of commas, opening brackets and opening braces in the body.

    Raises:
        ServingError: INVALID_ARGUMENT if the body is not UTF-8, not JSON or not an object, or if an
            object in it repeats a key. The HTTP status is 413 if the body has too many values.
    """
    # The parser blocks all other threads, and needs 5 s for 16 MB of "[],[],".
    if sum(map(body.count, (b",", b"[", b"{"))) > max_values:
        message = f"the request has more than {max_values} JSON values: send several requests"
        raise ServingError(Code.INVALID_ARGUMENT, message, http_status=413)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(
            f"the body is not valid UTF-8 at byte {error.start}: send JSON in UTF-8"
        ) from None
    if not text.strip():
        raise invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise invalid("JSON Parse error: the document is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or an integer with more than 4,300 digits
        raise invalid(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {_quote(document)} Is not object")
    return document


def _object(pairs: list[tuple]) -> dict:
    result = dict(pairs)
    if len(result) < len(pairs):
        [(key, _)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise invalid(f"JSON Parse error: an object has the key {_quote(key)} twice")
    return result


def decode_inputs(document: dict, signature: Signature) -> tuple[dict[str, np.ndarray], bool]:
    """Converts a predict request to arrays.

    Args:
        document: the parsed body, with the key "instances" (row format) or "inputs" (column
            format).
        signature: the requested signature.

    Returns:
        A dict mapping input name to array, and whether the request is in row format. The response
        must have the same format. Unknown names in "inputs" are ignored.

    Raises:
        ServingError: INVALID_ARGUMENT if `document` does not match `signature`.
    """
    has_rows, has_columns = "instances" in document, "inputs" in document
    if has_rows and has_columns:
        raise invalid("expecting only one of 'inputs' or 'instances' keys to exist")
    if not has_rows and not has_columns:
        raise invalid("Missing 'inputs' or 'instances' key")
    key, read = ("instances", _columns_of_rows) if has_rows else ("inputs", _columns)
    columns = read(document[key], signature)
    arrays = {
        name: _to_array(columns[name], spec, f"{key!r} {name!r}")
        for name, spec in signature.inputs.items()
    }
    return arrays, has_rows


def encode_outputs(outputs: dict[str, np.ndarray], row_format: bool) -> bytes:
    """Converts outputs to the JSON body of a response.

    In row format, "predictions" is a list with an object for each instance. In column format,
    "outputs" is a single object. The objects map output names to values. If the model has only one
    output, its value replaces the object. Strings are plain text, in which bytes that are not UTF-8
    become U+FFFD. If the name of an output ends in `_bytes`, its strings become {"b64": BASE64}.

    Args:
        outputs: dict mapping output name to array.
        row_format: whether to use row format.

    Raises:
        ServingError: INVALID_ARGUMENT if JSON cannot express the dtype of an output, or if
            `row_format` is true and an output is a scalar or the numbers of rows differ.
    """
    try:
        if row_format:
            _check_rows(outputs)
            return _encode({"predictions": as_rows(outputs)}).encode("utf-8")
        columns = {name: as_json(name, array) for name, array in outputs.items()}
    except ValueError as error:
        raise invalid(f"{error}: send the request by gRPC") from None
    if len(columns) == 1:
        [columns] = columns.values()
    return _encode({"outputs": columns}).encode("utf-8")


def _encode(value) -> str:
    """Encodes a value as JSON. Between the items of a list, other threads can run."""
    if isinstance(value, dict):
        items = [f"{_JSON.encode(name)}: {_encode(item)}" for name, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([_JSON.encode(item) for item in value]) + "]"
    return _JSON.encode(value)


def _columns_of_rows(instances, signature: Signature) -> dict[str, list]:
    if not isinstance(instances, list):
        raise invalid("Expecting 'instances' to be an list/array")
    if not instances:
        raise invalid("No values in 'instances' array: the batch is empty")
    is_named = _is_named(instances[0])
    for i, element in enumerate(instances):
        if _is_named(element) != is_named:
            wanted, actual = ("object", "list") if is_named else ("value/list", "object")
            raise invalid(f"Expecting {wanted} but got {actual} at item {i} of input list")
        if is_named and element.keys() != signature.inputs.keys():
            raise invalid(
                f"Failed to process element: {i} of 'instances' list. JSON object keys "
                f"{{{_quote(', '.join(element))}}} must be equal to: {','.join(signature.inputs)}"
            )
    if not is_named:
        return {_only_input(signature, "instances", "list of objects"): instances}
    return {name: [element[name] for element in instances] for name in signature.inputs}


def _columns(inputs, signature: Signature) -> dict:
    if not _is_named(inputs):
        return {_only_input(signature, "inputs", "an object"): inputs}
    for name in signature.inputs:
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
    return inputs


def _only_input(signature: Signature, key: str, wanted: str) -> str:
    if len(signature.inputs) != 1:
        raise invalid(
            f"{key} is a plain value/list, but expecting {wanted} as multiple input tensors "
            f"required: {', '.join(signature.inputs)}"
        )
    return next(iter(signature.inputs))


def _is_bytes(value) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _is_named(value) -> bool:
    """Returns whether a JSON value is an object of named tensors.

    An object with the single key "b64" is a base64 string, and does not count.
    """
    return isinstance(value, dict) and not _is_bytes(value)


def _to_array(value, spec: tf.TensorSpec, where: str) -> np.ndarray:
    """Converts a JSON value to an array with the dtype of the input.

    Args:
        value: a scalar, or nested lists of scalars.
        spec: dtype and shape of the input.
        where: description of the value for error messages, such as "'instances' 'text'".

    Raises:
        ServingError: INVALID_ARGUMENT if lists on one level differ in length, or if a scalar does
            not match the dtype.
    """
    array = np.array(value, dtype=np.object_)  # lists with unequal lengths stay Python lists
    leaves = array.reshape(-1).tolist()
    for leaf in leaves:
        if isinstance(leaf, list):
            raise invalid(
                f"{where} is ragged or nested too deeply: replace {_quote(leaf)} by a scalar, or "
                "by a list as long as the other lists on its level"
            )
    return _convert(leaves, spec.dtype, where).reshape(array.shape)


def _convert(leaves: list, dtype: tf.DType, where: str) -> np.ndarray:
    """Converts scalars to an array with one dimension.

    Args:
        leaves: scalars from JSON.
        dtype: dtype of the input.
        where: see `_to_array`.

    Raises:
        ServingError: INVALID_ARGUMENT if a scalar has a wrong type or is out of range.
    """
    if dtype == tf.string:
        return np.fromiter((_to_bytes(leaf, where) for leaf in leaves), np.object_, len(leaves))
    if dtype == tf.bool:
        _check_leaves(leaves, lambda leaf: isinstance(leaf, bool), dtype, where)
        return np.array(leaves, dtype=np.bool_)
    if dtype.is_integer:
        low, high = int(dtype.min), int(dtype.max)
        _check_leaves(leaves, lambda x: type(x) is int and low <= x <= high, dtype, where)
        return np.array(leaves, dtype=dtype.as_numpy_dtype)
    if dtype.is_floating:
        _check_leaves(leaves, lambda leaf: type(leaf) in (int, float), dtype, where)
        limit = float(dtype.max)
        # Infinities and NaN are valid. An int can be too large for `np.isfinite`.
        fits = lambda x: abs(x) <= limit or (type(x) is float and not np.isfinite(x))  # noqa: E731
        _check_leaves(leaves, fits, dtype, where)
        return np.array([float(leaf) for leaf in leaves]).astype(dtype.as_numpy_dtype)
    raise invalid(f"{where}: JSON cannot express the type {dtype.name}: use gRPC")


def _check_leaves(leaves: list, is_valid, dtype: tf.DType, where: str) -> None:
    for leaf in leaves:
        if not is_valid(leaf):
            raise invalid(
                f"{where}: JSON Value: {_quote(leaf)} is not of expected type: {dtype.name}"
            )


def _to_bytes(leaf, where: str) -> bytes:
    if isinstance(leaf, str):
        try:
            return leaf.encode("utf-8")
        except UnicodeEncodeError:  # half of a surrogate pair, such as "\ud800"
            raise invalid(
                f"{where}: a string has an unpaired surrogate, which UTF-8 cannot encode: remove "
                "the surrogate"
            ) from None
    if _is_bytes(leaf):
        try:
            return base64.b64decode(leaf["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise invalid(f"{where}: Unable to base64 decode") from None
    raise invalid(f"{where}: JSON Value: {_quote(leaf)} is not of expected type: string")


def _check_rows(outputs: dict[str, np.ndarray]) -> None:
    rows = next(iter(outputs.values())).shape[:1]
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid(
                f"Tensor name: {name} has no shape information: a scalar has no rows, so send "
                "'inputs' instead of 'instances'"
            )
        if array.shape[:1] != rows:
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} "
                f"expecting: {rows[0]}: send 'inputs' instead of 'instances'"
            )


def _quote(value) -> str:
    try:
        text = json.dumps(value) if not isinstance(value, str) else value
    except (RecursionError, ValueError):
        text = type(value).__name__
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."
