"""Tests of the conversion between JSON and tensors by TensorFlow Serving's rules."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from export.server import json_tensors
from export.server.errors import ServingError
from export.server.servable import Signature

pytestmark = pytest.mark.quick


def signature(**inputs: tf.TensorSpec) -> Signature:
    definition = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for name, spec in inputs.items():
        definition.inputs[name].name = f"{name}:0"
        definition.inputs[name].dtype = spec.dtype.as_datatype_enum
        definition.inputs[name].tensor_shape.CopyFrom(spec.shape.as_proto())
    return Signature("test", definition)


TEXT = signature(text=tf.TensorSpec([None], tf.string))
PAIR = signature(a=tf.TensorSpec([None, 2], tf.int32), b=tf.TensorSpec([None], tf.float32))


def decode(body: str, which: Signature = TEXT):
    return json_tensors.decode_inputs(json_tensors.parse_body(body.encode()), which)


@pytest.mark.parametrize(
    ("body", "row_format"),
    [
        ('{"instances": ["a", "ü"]}', True),
        ('{"instances": [{"text": "a"}, {"text": "ü"}]}', True),
        ('{"inputs": ["a", "ü"]}', False),
        ('{"inputs": {"text": ["a", "ü"]}}', False),
        ('{"instances": ["a", {"b64": "w7w="}]}', True),
    ],
)
def test_one_input_takes_values_or_objects_in_rows_or_columns(body, row_format):
    inputs, found = decode(body)
    assert found == row_format and inputs["text"].tolist() == [b"a", "ü".encode()]


def test_several_inputs():
    rows, _ = decode('{"instances": [{"a": [1, 2], "b": 3}, {"a": [4, 5], "b": 6.5}]}', PAIR)
    columns, _ = decode('{"inputs": {"a": [[1, 2], [4, 5]], "b": [3, 6.5]}}', PAIR)
    for inputs in (rows, columns):
        assert inputs["a"].dtype == np.int32 and inputs["a"].tolist() == [[1, 2], [4, 5]]
        assert inputs["b"].dtype == np.float32 and inputs["b"].tolist() == [3.0, 6.5]


@pytest.mark.parametrize(
    "body, words",
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", r"the body is \[1\], not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"instances": [' + "9" * 5000 + "]}", "is not JSON"),
        ("{}", "either the key 'instances' or the key 'inputs'"),
        ('{"instances": ["a"], "inputs": ["a"]}', "either the key"),
        ('{"instances": "a"}', "'instances' is \"a\", not a list"),
        ('{"instances": [{"words": "a"}]}', "instance 0 is {.*}, not an object with .'text'."),
        ('{"instances": ["a", {"text": "b"}]}', 'instance 0 is "a", not an object'),
        ('{"instances": [{"text": "b"}, "a"]}', 'instance 1 is "a", not an object'),
        ('{"instances": [1]}', "1 is not a string"),
        ('{"instances": [null]}', "null is not a string"),
        ('{"instances": [NaN]}', "NaN is not a string"),
        ('{"instances": [["a"], ["b", "c"]]}', "ragged"),
        ('{"instances": [["a"], "b"]}', "ragged"),
        ('{"instances": [' + "[" * 100 + "]" * 100 + "]}", "is not a string"),
        ('{"instances": [{"b64": "?"}]}', "not base64"),
        ('{"instances": ["\\ud800"]}', "surrogate"),
        ('{"inputs": {"words": ["a"]}}', "'inputs' has the names"),
    ],
)
def test_bad_requests_name_what_is_wrong(body, words):
    with pytest.raises(ServingError, match=words) as caught:
        decode(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "row",
    ['{"a": [1, 2.0], "b": 1}', '{"a": [1, true], "b": 1}', '{"a": [1, 3000000000], "b": 1}']
    + ['{"a": [1, 2], "b": 1e39}', '{"a": [1, 2], "b": "1"}', '{"a": [1, 2], "b": true}'],
)
def test_numbers_are_not_cast_with_loss(row):
    with pytest.raises(ServingError, match="is not a value of type"):
        decode(f'{{"instances": [{row}]}}', PAIR)


def test_invalid_utf8_and_plain_list_for_two_inputs():
    with pytest.raises(ServingError, match="not UTF-8 at byte 16"):
        json_tensors.parse_body(b'{"instances": ["\xff"]}')
    with pytest.raises(ServingError, match="'instances' names no input: send objects"):
        decode('{"instances": [1]}', PAIR)


def test_a_body_has_a_limit_of_values():
    with pytest.raises(ServingError, match="more than 250,000 JSON values") as caught:
        json_tensors.parse_body(b"[]," * 1_000_000)
    assert caught.value.status == 413


def encode(row_format: bool, **outputs):
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return json.loads(json_tensors.encode_outputs(arrays, row_format))


def test_strings_and_floats_are_printed_as_tensorflow_serving_does():
    raw = np.array([b"\xff"], object)
    assert encode(True, out=raw) == {"predictions": ["\ufffd"]}
    floats = json_tensors.encode_outputs({"f": np.array([0.2, np.nan, 1e30], np.float32)}, False)
    assert floats == b'{"outputs": [0.2, NaN, 1e+30]}'


@pytest.mark.parametrize("y", [np.float32(1), np.zeros(3)])
def test_row_form_needs_equal_rows(y):
    with pytest.raises(ServingError, match="do not have one row per instance"):
        encode(True, x=np.zeros(2), y=y)
