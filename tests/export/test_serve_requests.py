"""Tests of requests in TensorFlow Serving's JSON, and of dynamic batching."""

import asyncio
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from export.server import json_tensors
from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import ServingError
from export.server.servable import Signature

pytestmark = pytest.mark.quick


def signature_of(**inputs: tf.TensorSpec) -> Signature:
    definition = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for name, spec in inputs.items():
        definition.inputs[name].name = f"{name}:0"
        definition.inputs[name].dtype = spec.dtype.as_datatype_enum
        definition.inputs[name].tensor_shape.CopyFrom(spec.shape.as_proto())
    return Signature("test", definition)


TEXT = signature_of(text=tf.TensorSpec([None], tf.string))
PAIR = signature_of(a=tf.TensorSpec([None, 2], tf.int32), b=tf.TensorSpec([None], tf.float32))


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


class Doubler:
    """A fake model that doubles numbers and fails on negative numbers.

    Tests can replace the result function and the error function, and can block calls.
    """

    def __init__(
        self, result=lambda x: x * 2, error=lambda x: ServingError(400, f"negative: {x.min()}")
    ):
        self.signature = SimpleNamespace(name="double", waits=True, batchable=True)
        self.result, self.error = result, error
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, signature, inputs):
        self.calls.append(len(inputs["x"]))
        self.gate.wait(10)
        if (inputs["x"] < 0).any():
            raise self.error(inputs["x"])
        return {"y": self.result(inputs["x"])}


def batcher(max_batch_size=8, batch_timeout_ms=50.0) -> Batcher:
    sizes = {"max_batch_size": max_batch_size, "batch_timeout_ms": batch_timeout_ms}
    return Batcher(ServerConfig("toy", "toy", **sizes, max_queue=20, workers=1))


def answers_of(model, *requests, **sizes) -> list:
    """Runs requests, each a list of numbers; returns the outputs or the exception of each."""

    async def ask():
        made = batcher(**sizes)
        arrays = [{"x": np.array(numbers)} for numbers in requests]
        futures = [made.submit(model, model.signature, one, len(one["x"])) for one in arrays]
        return await asyncio.gather(*futures, return_exceptions=True)

    answers = asyncio.run(ask())
    return [one if isinstance(one, Exception) else one["y"].tolist() for one in answers]


def test_concurrent_requests_are_merged_and_split():
    model, requests = Doubler(), [[i, i + 100] for i in range(4)]
    answers = answers_of(model, *requests, batch_timeout_ms=600_000.0)
    assert answers == [[2 * i, 2 * i + 200] for i in range(4)] and model.calls == [8]


def test_a_large_request_runs_alone_and_whole():
    model = Doubler()
    [answer, _] = answers_of(model, range(30), [1])
    assert len(answer) == 30 and model.calls == [30, 1]


def test_different_widths_are_not_merged():
    narrow, wide = answers_of(Doubler(), np.zeros((2, 3)), np.zeros((2, 4)))
    assert np.shape(narrow) == (2, 3) and np.shape(wide) == (2, 4)


def test_requests_of_litert_do_not_wait_for_others():
    model = Doubler()
    model.signature.waits = False
    assert answers_of(model, [1], batch_timeout_ms=600_000.0) == [[2]]


def test_an_error_in_a_batch_fails_only_the_guilty():
    model = Doubler()
    good, bad, fine = answers_of(model, [1], [-2], [3])
    assert (good, fine) == ([2], [6]) and "-2" in str(bad) and bad.status == 400
    assert model.calls == [3, 1, 1, 1]


def run_once(numbers, error):
    """Runs one batch of one-row requests; returns (row counts of the model calls, answers)."""
    model = Doubler(error=error)
    answers = answers_of(model, *([n] for n in numbers), max_batch_size=len(numbers))
    return model.calls, ["bad" if isinstance(one, Exception) else one[0] for one in answers]


def test_a_check_that_names_rows_costs_the_good_requests_one_run():
    def named(x):
        rows = " ".join(map(str, np.flatnonzero(x < 0)))
        message = f"assertion failed: [too long] [rows:] [{rows}]\n\t [[{{{{node a}}}}]]"
        return tf.errors.InvalidArgumentError(None, None, message)

    numbers = [1, 2, -3, 4, 5, 6, 7, -8, 9, 10, 11, 12, 13, 14]
    calls, answers = run_once(numbers, named)
    assert calls == [14, 12, 1, 1]
    assert answers == ["bad" if number < 0 else 2 * number for number in numbers]
    [answer] = answers_of(Doubler(error=named), [1, -2, 3, -4])
    assert str(answer) == "too long (row 1, 3)" and answer.status == 400


@pytest.mark.parametrize("rows", ["", "0 1 2 3 4 5 6 7", "99", "9" * 5000, "3"])
def test_a_check_that_names_no_rows_or_wrong_ones_fails_only_the_guilty(rows):
    """Only models of this project name the bad rows, and a text may look like such a message."""
    error = tf.errors.InvalidArgumentError(None, None, f"assertion failed: [a] [rows:] [{rows}]")
    _, answers = run_once([1, 2, 3, 4, 5, 6, -7, 8], lambda x: error)
    assert answers == [2, 4, 6, 8, 10, 12, "bad", 16]


def test_outputs_without_rows_end_the_merging():
    model = Doubler(lambda x: x.sum())
    assert answers_of(model, [1], [2]) == [1, 2] and not model.signature.batchable


def test_a_full_queue_refuses_at_once():
    async def fill():
        made, model = batcher(), Doubler()
        model.gate.clear()
        futures = [made.submit(model, model.signature, {"x": np.zeros(8)}, 8)]  # runs
        one = {"x": np.zeros(1)}
        futures += [made.submit(model, model.signature, one, 1) for _ in range(20)]
        with pytest.raises(ServingError, match="the queue is full with 20 requests") as caught:
            made.submit(model, model.signature, one, 1)
        assert caught.value.status == 503
        model.gate.set()
        assert len(await asyncio.gather(*futures)) == 21

    asyncio.run(fill())
