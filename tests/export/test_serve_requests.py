"""Tests of requests in TensorFlow Serving's JSON, and of dynamic batching."""

import asyncio
import json
import threading

import numpy as np
import pytest
import tensorflow as tf

from export.server import json_tensors
from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import ServingError

pytestmark = pytest.mark.quick


SIGNATURES = {
    "serving_default": {"text": tf.string},
    "pair": {"a": tf.int32, "b": tf.float32},
}


def decode(body: str, signature: str = "serving_default"):
    if signature != "serving_default":
        body = body.replace("{", f'{{"signature_name": "{signature}", ', 1)
    name, *found = json_tensors.decode_request(body.encode(), SIGNATURES, 100)
    assert name == signature
    return found


@pytest.mark.parametrize(
    ("body", "row_format"),
    [
        ('{"instances": ["a", "ü"]}', True),
        ('{"instances": [{"text": "a"}, {"text": "ü"}]}', True),
        ('{"inputs": ["a", "ü"]}', False),
        ('{"inputs": {"text": ["a", "ü"]}}', False),
    ],
)
def test_one_input_takes_values_or_objects_in_rows_or_columns(body, row_format):
    inputs, found = decode(body)
    assert found == row_format and inputs["text"].tolist() == [b"a", "ü".encode()]


def test_several_inputs():
    rows, _ = decode('{"instances": [{"a": 1, "b": 3}, {"a": 4, "b": 6.5}]}', "pair")
    columns, _ = decode('{"inputs": {"a": [1, 4], "b": [3, 6.5]}}', "pair")
    for inputs in (rows, columns):
        assert inputs["a"].dtype == np.int32 and inputs["a"].tolist() == [1, 4]
        assert inputs["b"].dtype == np.float32 and inputs["b"].tolist() == [3.0, 6.5]


@pytest.mark.parametrize(
    "body, words",
    [
        ("", "is no JSON object"),
        ("[1]", "the body is no JSON object"),
        ("[" * 100_000, "is no JSON object"),
        ('{"instances": [' + "9" * 5000 + "]}", "is no JSON object"),
        ("{}", "either the key 'instances' or the key 'inputs'"),
        ('{"instances": ["a"], "inputs": ["a"]}', "either the key"),
        ('{"instances": "a"}', "'instances' is 'a', not a list"),
        ('{"instances": [{"words": "a"}]}', "instance 0 is {.*}, not an object with text"),
        ('{"instances": ["a", {"text": "b"}]}', "instance 0 is 'a', not an object"),
        ('{"instances": [{"text": "b"}, "a"]}', "instance 1 is 'a', not an object"),
        ('{"instances": [1]}', "1 is not a value of type string"),
        ('{"instances": [null]}', "None is not a value of type string"),
        ('{"instances": [["a"], "b"]}', "is not a value of type string"),
        ('{"instances": [' + "[" * 100 + "]" * 100 + "]}", "is not a value of type string"),
        ('{"instances": ["\\ud800"]}', "surrogate"),
        ('{"instances": []}', "the request has 0 rows: send 1 to 100 rows"),
        ('{"inputs": "a"}', "input 'text' is 'a', not a list"),
        ('{"inputs": {"words": ["a"]}}', "'inputs' is {.*}, not an object with text"),
        ('{"signature_name": "no", "inputs": ["a"]}', "choose one of pair, serving_default"),
    ],
)
def test_bad_requests_name_what_is_wrong(body, words):
    with pytest.raises(ServingError, match=words) as caught:
        decode(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "row",
    ['{"a": 2.0, "b": 1}', '{"a": true, "b": 1}', '{"a": 3000000000, "b": 1}']
    + ['{"a": 2, "b": 1e39}', '{"a": 2, "b": "1"}', '{"a": 2, "b": true}'],
)
def test_numbers_are_not_cast_with_loss(row):
    with pytest.raises(ServingError, match="is not a value of type"):
        decode(f'{{"instances": [{row}]}}', "pair")


def encode(row_format: bool, **outputs):
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return json.loads(json_tensors.encode_outputs(arrays, row_format))


def test_strings_and_floats_are_printed_as_tensorflow_serving_does():
    raw = np.array([b"\xff"], object)
    assert encode(True, out=raw) == {"predictions": ["\ufffd"]}
    floats = json_tensors.encode_outputs({"f": np.array([0.2, np.nan, 1e30], np.float32)}, False)
    assert floats == b'{"outputs": [0.2, NaN, 1e+30]}'


class Doubler:
    """A fake model that doubles numbers and fails on negative numbers.

    Tests can replace the error function, and can block calls.
    """

    def __init__(self, error=lambda x: ServingError(400, f"negative: {x.min()}")):
        self.error, self.is_slow, self.calls = error, True, []
        self.gate = threading.Event()
        self.gate.set()

    def waits(self, signature):
        return self.is_slow

    def run(self, signature, inputs):
        self.calls.append(len(inputs["x"]))
        self.gate.wait(10)
        if (inputs["x"] < 0).any():
            raise self.error(inputs["x"])
        return {"y": inputs["x"] * 2}


def batcher(max_batch_size=8, batch_timeout_ms=50.0) -> Batcher:
    sizes = {"max_batch_size": max_batch_size, "batch_timeout_ms": batch_timeout_ms}
    return Batcher(ServerConfig("toy", "toy", **sizes, max_queue=20, workers=1))


def answers_of(model, *requests, **sizes) -> list:
    """Runs requests, each a list of numbers; returns the outputs or the exception of each."""

    async def ask():
        made = batcher(**sizes)
        arrays = [{"x": np.array(numbers)} for numbers in requests]
        futures = [made.submit(model, "double", one) for one in arrays]
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


def test_requests_of_litert_do_not_wait_for_others():
    model = Doubler()
    model.is_slow = False
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


def test_a_full_queue_refuses_at_once():
    async def fill():
        made, model = batcher(), Doubler()
        model.gate.clear()
        futures = [made.submit(model, "double", {"x": np.zeros(8)})]  # runs
        one = {"x": np.zeros(1)}
        futures += [made.submit(model, "double", one) for _ in range(20)]
        with pytest.raises(ServingError, match="the queue is full with 20 requests") as caught:
            made.submit(model, "double", one)
        assert caught.value.status == 503
        model.gate.set()
        assert len(await asyncio.gather(*futures)) == 21

    asyncio.run(fill())
