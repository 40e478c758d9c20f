"""Batches from a tf.data service, in another process or on another machine, in order."""

import contextlib
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import prefetched
from macaron_tf.errors import UserError

_AWAY_SECONDS = 30.0  # a service restarts faster; TensorFlow itself would wait forever
_SILENT_SECONDS = 600.0  # the first batch needs 2^16 rows to be read, perhaps over a network
# The start of an HTTP/2 connection, which gRPC uses: the preface and an empty settings frame (type
# 4). A live service answers with its settings; a hanging process connects but does not answer.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# TensorFlow's name for the first Python function of a process that becomes an operation.
_FUNCTION = "pyfunc_0"


@contextlib.contextmanager
def offer(make: Callable[[bytes, int], list[np.ndarray]]) -> Iterator[None]:
    """Context in which datasets of other processes can call a Python function in this process.

    Args:
        make: function of a request and a number; `offered` calls it. It must be the process's first
            Python function that becomes an operation.
    """
    with tf.Graph().as_default() as graph:  # it keeps the function alive
        tf.numpy_function(make, [tf.constant(b""), tf.constant(0, tf.int64)], [tf.int32])
    [made] = [op for op in graph.get_operations() if op.type == "PyFunc"]
    if made.get_attr("token").decode() != _FUNCTION:
        raise RuntimeError("another Python function became an operation before this one")
    yield


def offered(
    request: str, number: tf.Tensor, spec: Mapping[str, tf.TensorSpec]
) -> dict[str, tf.Tensor]:
    """Calls `offer`'s function in the process of a service's worker, from a dataset's graph.

    A dataset is sent as a graph; this operation in it finds the function by its name.
    """
    kinds = [each.dtype for each in spec.values()]
    arrays = tf.raw_ops.PyFuncStateless(input=[request, number], token=_FUNCTION, Tout=kinds)
    return {
        name: tf.ensure_shape(array, each.shape)
        for (name, each), array in zip(spec.items(), arrays, strict=True)
    }


def through_service(dataset: tf.data.Dataset, addresses: str, process: int = 0) -> tf.data.Dataset:
    """Lets a tf.data service make a dataset's batches, in the same order.

    `python -m experiments.data_service` starts a service. A service with one worker keeps the order
    of the batches, if each iteration is a job that no other process reads. With several workers,
    each makes all batches, which arrive in any order. Batches therefore carry their numbers, and a
    wrong number ends the run: it shows a second worker, or a worker that was restarted and began
    again. To use more machines, give each training process a service of its own.

    Args:
        dataset: made of TensorFlow operations and `offered`, because a Python generator cannot be
            sent. The service must find its files under the same absolute paths.
        addresses: HOST:PORT of the service; several, separated by commas, are assigned to the
            training processes in turn.
        process: number of this training process.

    Returns:
        Dataset of equal structure and cardinality, which only this process reads. Iteration raises
        a tf.errors.OpError if the service fails, is unreachable for half a minute, sends no batch
        for ten minutes, or sends a wrong one; `service_error` explains it.

    Raises:
        UserError: an address is malformed, or no dispatcher answers there.
    """
    listed = addresses.split(",")
    address = listed[process % len(listed)].strip()
    check_address(address)
    distribute = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.OFF, f"grpc://{address}"
    )
    try:
        served = dataset.enumerate().apply(distribute)
    except tf.errors.OpError as error:
        raise UserError(
            f"the data service {address} does not take the batches: {_first_line(error)}"
        ) from error
    watched = tf.data.Dataset.from_generator(
        lambda: _watched(served, address), output_signature=dataset.element_spec
    )
    return prefetched(watched, dataset.cardinality())


def check_addresses(given: str | None) -> None:
    """Calls `check_address` for each of several addresses, separated by commas."""
    for address in filter(None, map(str.strip, (given or "").split(","))):
        check_address(address)


def check_address(address: str) -> None:
    """Raises a UserError if an address is not HOST:PORT, or does not answer in five seconds."""
    if not re.fullmatch(r"[^:/\s]+:\d{1,5}", address):
        raise UserError(f"data service {address!r}: give HOST:PORT, such as localhost:5050")
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(_GREETING)
            if connection.recv(9)[3:4] != b"\4":
                raise ConnectionError("not HTTP/2")
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no data service answers at {address}: start one with "
            f"`python -m experiments.data_service --port {port}` on {host}, or give its address"
        ) from error


def service_error(error: tf.errors.OpError) -> UserError | None:
    """The UserError to raise for a failed service; None if `error` has another cause."""
    found = re.search(r"UserError: (.*the data service .*)", error.message)
    return UserError(found[1]) if found else None


def _watched(served: tf.data.Dataset, address: str) -> Iterator:
    """Yields batches while the service is alive.

    TensorFlow's reader would wait forever for a dead service, so it runs in a thread of its own.
    """
    ready: queue.Queue = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def read():
        try:
            for item in served.as_numpy_iterator():
                ready.put(item)
                if stopped.is_set():
                    return
            ready.put(None)
        except tf.errors.OpError as error:
            ready.put(error)

    threading.Thread(target=read, daemon=True).start()
    expected = 0
    try:
        while (item := _next(ready, address)) is not None:
            if isinstance(item, tf.errors.OpError):
                raise UserError(
                    f"the data service {address} failed ({_first_line(item)}): see what it says, "
                    "start it again, then give the same command again"
                ) from item
            number, batch = item
            if number != expected:
                raise UserError(
                    f"the data service {address} gave batch {number} instead of {expected}: it "
                    "has more than one worker, or a worker was restarted; start it again with one "
                    "worker, then give the same command again"
                )
            expected += 1
            yield batch
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()  # lets a reader that waits for room continue and end


def _next(ready: queue.Queue, address: str):
    """Returns the reader's next item; raises a UserError if the service is away or silent."""
    began = answered = time.monotonic()
    while True:
        try:
            return ready.get(timeout=min(5.0, _AWAY_SECONDS / 3))
        except queue.Empty:
            now = time.monotonic()
        with contextlib.suppress(UserError):
            check_address(address)
            answered = now
        if now - answered > _AWAY_SECONDS:
            raise UserError(
                f"the data service {address} is gone: start it again, then give the same command "
                "again"
            )
        if now - began > _SILENT_SECONDS:
            raise UserError(
                f"the data service {address} made no batch in {now - began:.0f} seconds: check "
                "that it has a worker that this machine can reach, then give the same command again"
            )


def _first_line(error: tf.errors.OpError) -> str:
    """The message of a UserError, or TensorFlow's reason without names of graph nodes."""
    if found := re.search(r"UserError: (.*)", error.message):
        return found[1]
    return re.sub(r"\{\{.*?\}\} *|\[Op:.*", "", error.message.strip()).splitlines()[0][:200]
