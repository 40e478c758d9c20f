"""Clients raise a one-line error if a data service is missing, stops or serves other batches."""

import socket

import pytest
import tensorflow as tf

from macaron_tf.data import service
from macaron_tf.data.service import service_error, through_service
from macaron_tf.errors import UserError
from tests.harness import refuses

servers = tf.data.experimental.service

pytestmark = pytest.mark.service


@pytest.fixture
def dispatcher():
    server = servers.DispatchServer()
    yield server
    server.stop()


@pytest.fixture
def address(dispatcher) -> str:
    return dispatcher.target.partition("://")[2]


@pytest.fixture
def worker(address):
    server = servers.WorkerServer(servers.WorkerConfig(address))
    yield server
    server.stop()


def numbers(dataset) -> list[int]:
    return [int(batch["number"]) for batch in dataset]


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.counter(7).map(lambda number: {"number": number})


def failure(dataset) -> str:
    with pytest.raises(tf.errors.OpError) as raised:
        numbers(dataset.take(100_000))
    return str(service_error(raised.value))


@pytest.mark.usefixtures("worker")
def test_batches_structure_and_number_are_kept(address):
    dataset = through_service(endless(), f"nowhere:1, {address}", process=3)
    assert dataset.element_spec == endless().element_spec
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    for _ in range(2):  # each iteration restarts
        assert numbers(dataset.take(300)) == list(range(7, 307))
    # Two readers do not share batches.
    one, other = iter(dataset), iter(dataset)
    assert [int(next(reader)["number"]) for reader in (one, other, one)] == [7, 7, 8]
    finite = through_service(endless().take(5), address)
    assert len(finite) == 5 and numbers(finite) == [7, 8, 9, 10, 11]
    filtered = endless().take(5).filter(lambda batch: batch["number"] % 2 == 1)
    assert numbers(through_service(filtered, address)) == [7, 9, 11]


@pytest.mark.usefixtures("worker")
def test_a_second_worker_ends_the_run(address):
    second = servers.WorkerServer(servers.WorkerConfig(address))
    sentence = failure(through_service(endless(), address))
    assert f"the data service {address} sent batch 0 instead of" in sentence
    assert sentence.endswith("run the same command again")
    second.stop()


def test_a_service_that_goes_away_ends_the_run(dispatcher, worker, address, monkeypatch):
    monkeypatch.setattr(service, "_MAX_AWAY_SECONDS", 1.0)
    reader = iter(through_service(endless(), address))
    assert int(next(reader)["number"]) == 7
    worker.stop()
    dispatcher.stop()
    with pytest.raises(tf.errors.OpError) as raised:
        for _ in range(1000):
            next(reader)
    sentence = str(service_error(raised.value))
    assert sentence.startswith(f"the data service {address} ")
    assert "start the service again" in sentence


def test_a_service_without_a_worker_ends_the_run(address, monkeypatch):
    monkeypatch.setattr(service, "_MAX_AWAY_SECONDS", 1.0)
    monkeypatch.setattr(service, "_MAX_SILENT_SECONDS", 2.0)
    assert "sent no batch in 2 seconds" in failure(through_service(endless(), address))


@pytest.mark.parametrize("address", ["nonsense", "localhost", ":5050", "localhost:port", "a:1:2"])
def test_an_address_that_is_none(address):
    refuses("give HOST:PORT, such as localhost:5050", through_service, endless(), address)


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "something else"])
def test_an_address_at_which_no_service_answers(listens):
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        if listens:
            bound.listen()
        address = f"localhost:{bound.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no data service responds at {address}: start a"):
            through_service(endless(), address)


def test_a_worker_is_no_dispatcher(worker):
    message = f"the data service {worker._address} does not accept"
    refuses(message, through_service, endless(), worker._address)


def test_other_errors_are_not_the_services():
    assert service_error(tf.errors.InvalidArgumentError(None, None, "shapes do not match")) is None
