"""Tests of dynamic batching, with a model in Python."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from export.server.batching import Batcher
from export.server.errors import Code, ServingError

pytestmark = pytest.mark.quick


class Doubler:
    """A fake model that doubles numbers and fails on negative numbers.

    Tests can replace the result function and the error function, and can block calls.
    """

    version = 1

    def __init__(
        self,
        result=lambda x: x * 2,
        error=lambda x: ServingError(Code.INVALID_ARGUMENT, f"negative: {x.min()}"),
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


@pytest.fixture
def batcher():
    made = Batcher(max_batch_size=8, timeout_ms=50, max_queue=20, workers=1)
    yield made
    made.stop(5)


def submit(batcher, model, *values):
    return batcher.submit(model, model.signature, {"x": np.array(values)}, len(values))


def test_concurrent_requests_are_merged_and_split():
    batcher = Batcher(max_batch_size=8, timeout_ms=600_000, max_queue=20, workers=1)
    model = Doubler()
    futures = [submit(batcher, model, i, i + 100) for i in range(4)]
    assert [f.result()["y"].tolist() for f in futures] == [[2 * i, 2 * i + 200] for i in range(4)]
    assert model.calls == [8]
    batcher.stop(5)


def test_a_lone_request_waits_no_longer_than_the_timeout(batcher):
    started = time.monotonic()
    submit(batcher, Doubler(), 1).result(5)
    assert time.monotonic() - started > 0.04


def test_a_large_request_runs_alone_and_whole(batcher):
    model = Doubler()
    assert len(submit(batcher, model, *range(30)).result(5)["y"]) == 30
    assert model.calls == [30]


def test_different_widths_are_not_merged(batcher):
    model = Doubler()
    narrow = batcher.submit(model, model.signature, {"x": np.zeros((2, 3))}, 2)
    wide = batcher.submit(model, model.signature, {"x": np.zeros((2, 4))}, 2)
    assert narrow.result(5)["y"].shape == (2, 3) and wide.result(5)["y"].shape == (2, 4)


def test_an_error_in_a_batch_fails_only_the_guilty(batcher):
    model = Doubler()
    good, bad, fine = (submit(batcher, model, i) for i in (1, -2, 3))
    assert good.result(5)["y"].tolist() == [2] and fine.result(5)["y"].tolist() == [6]
    with pytest.raises(ServingError, match="-2"):
        bad.result(5)
    assert model.calls == [3, 1, 1, 1]


def run_once(values, error):
    """Runs one batch of one-row requests; returns (row counts of the model calls, answers)."""
    batcher = Batcher(max_batch_size=len(values), timeout_ms=60_000, max_queue=99, workers=1)
    model = Doubler(error=error)
    futures = [submit(batcher, model, value) for value in values]
    answers = [future.exception(10) or int(future.result()["y"][0]) for future in futures]
    batcher.stop(5)
    return model.calls, answers


def test_a_check_that_names_rows_costs_the_good_requests_one_run():
    def named(x):
        rows = " ".join(map(str, np.flatnonzero(x < 0)))
        message = f"assertion failed: [too long] [rows:] [{rows}]\n\t [[{{{{node a}}}}]]"
        return tf.errors.InvalidArgumentError(None, None, message)

    values = [1, 2, -3, 4, 5, 6, 7, -8, 9, 10, 11, 12, 13, 14]
    calls, answers = run_once(values, named)
    assert calls == [14, 12, 2, 1, 1]
    assert [a for a in answers if isinstance(a, int)] == [
        2 * value for value in values if value > 0
    ]
    assert [type(a) for a in answers].count(tf.errors.InvalidArgumentError) == 2


@pytest.mark.parametrize("rows", ["", "0 1 2 3 4 5 6 7", "99", "9" * 5000, "3"])
def test_a_check_that_names_no_rows_or_wrong_ones_fails_only_the_guilty(rows):
    """If an error message does not name the bad rows, the batch is bisected.

    Only models of this project name the bad rows, and an input text may look like a message that
    names rows.
    """
    error = tf.errors.InvalidArgumentError(None, None, f"assertion failed: [a] [rows:] [{rows}]")
    calls, answers = run_once([1, 2, 3, 4, 5, 6, -7, 8], lambda x: error)
    assert [a if isinstance(a, int) else "bad" for a in answers] == [2, 4, 6, 8, 10, 12, "bad", 16]
    assert rows == "3" or calls == [8, 4, 4, 2, 2, 1, 1]


def test_outputs_without_rows_end_the_merging(batcher):
    model = Doubler(lambda x: x.sum())
    futures = [submit(batcher, model, i) for i in (1, 2)]
    assert [int(f.result(5)["y"]) for f in futures] == [1, 2]
    assert not model.signature.batchable


def test_a_full_queue_refuses_at_once(batcher):
    model = Doubler()
    model.gate.clear()
    futures = [submit(batcher, model, *range(8))]
    while not model.calls:  # until the worker holds the first batch
        time.sleep(0.01)
    futures += [submit(batcher, model, i) for i in range(20)]
    with pytest.raises(ServingError, match="the queue is full with 20 requests") as caught:
        submit(batcher, model, 1)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED and caught.value.http_status == 503
    model.gate.set()
    assert all(f.result(5) for f in futures)


def test_a_cancelled_request_is_not_run(batcher):
    model = Doubler()
    assert submit(batcher, model, 1).cancel()
    assert submit(batcher, model, 2).result(5)["y"].tolist() == [4]
    assert model.calls == [1]


def test_stop_finishes_what_is_queued_and_refuses_more():
    batcher = Batcher(max_batch_size=8, timeout_ms=60_000, max_queue=20, workers=1)
    model = Doubler()
    future = submit(batcher, model, 5)
    batcher.stop(5)
    assert future.result(0)["y"].tolist() == [10]
    with pytest.raises(ServingError, match="shutting down"):
        submit(batcher, model, 1)
