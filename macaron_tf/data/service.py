"""Batches made by a tf.data service, in another process or on another machine, in their order."""

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

_AWAY_SECONDS = 30.0  # a service restarts in less; TensorFlow itself would wait for ever
_SILENT_SECONDS = 600.0  # the first batch waits for 2^16 rows to be read, over a network perhaps
# How HTTP/2, on which gRPC runs, begins: the preface and settings (frame type 4), none of them
# changed. The other side answers with its own; a process that hangs connects and says nothing.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# TensorFlow's name of the first Python function that a process makes an operation of.
_FUNCTION = "pyfunc_0"


@contextlib.contextmanager
def offer(make: Callable[[bytes, int], list[np.ndarray]]) -> Iterator[None]:
    """Lets datasets of other processes call a Python function in this one, see `offered`.

    Args:
        make: gets a request and a number. It must be the process's first Python function that
            becomes an operation.
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
    """The arrays that `offer`'s function makes in the process of a service's worker.

    A dataset travels as a graph, and this operation of it finds the function by its name.
    """
    kinds = [each.dtype for each in spec.values()]
    arrays = tf.raw_ops.PyFuncStateless(input=[request, number], token=_FUNCTION, Tout=kinds)
    return {
        name: tf.ensure_shape(array, each.shape)
        for (name, each), array in zip(spec.items(), arrays, strict=True)
    }


def through_service(dataset: tf.data.Dataset, addresses: str, process: int = 0) -> tf.data.Dataset:
    """The same batches in the same order, made by a tf.data service.

    `python -m experiments.data_service` starts one. TensorFlow keeps the order of a service with
    one worker where each iteration is a job of its own that no other process reads from; a resumed
    run registers a dataset that begins at its own step. Several workers behind one dispatcher each
    make all batches, which arrive as they are ready, and jobs shared by name deal batches to
    whoever asks first. So batches travel with their numbers, and one out of turn ends the run
    instead of training it on other data: with a second worker, or when a worker was started again
    and begins anew. To use more machines, give each training process a service of its own.

    Args:
        dataset: of TensorFlow's operations and `offered`, for a Python generator cannot travel;
            the service finds its files under the same absolute paths.
        addresses: HOST:PORT of the service; several, separated by commas, are dealt to the
            training processes.

    Returns:
        Dataset of the same structure and cardinality, read by this process alone. Its iteration
        raises a tf.errors.OpError that `service_error` explains when the service fails, is away
        for half a minute, makes no batch for ten, or gives one out of turn.

    Raises:
        UserError: an address is none, or no dispatcher answers there.
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
    """`check_address` of each of several addresses, separated by commas; None = there are none."""
    for address in filter(None, map(str.strip, (given or "").split(","))):
        check_address(address)


def check_address(address: str) -> None:
    """Refuses an address that is no HOST:PORT, or does not answer within five seconds."""
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
    """The error to raise for a failed service, None where `error` has another cause."""
    found = re.search(r"UserError: (.*the data service .*)", error.message)
    return UserError(found[1]) if found else None


def _watched(served: tf.data.Dataset, address: str) -> Iterator:
    """The batches as long as the service lives.

    TensorFlow's own reader waits for a dead service, in a thread that can be left behind.
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
                    "has more than one worker, or a worker began anew; start it again with one "
                    "worker, then give the same command again"
                )
            expected += 1
            yield batch
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()  # a reader that waits for room goes on, and ends


def _next(ready: queue.Queue, address: str):
    """The reader's next item; raises a UserError where the service is away or silent."""
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
                f"the data service {address} has gone: start it again, then give the same command "
                "again"
            )
        if now - began > _SILENT_SECONDS:
            raise UserError(
                f"the data service {address} made no batch in {now - began:.0f} seconds: see that "
                "it has a worker which this machine can reach, then give the same command again"
            )


def _first_line(error: tf.errors.OpError) -> str:
    """The sentence of a UserError, or TensorFlow's reason without the names of its nodes."""
    if found := re.search(r"UserError: (.*)", error.message):
        return found[1]
    return re.sub(r"\{\{.*?\}\} *|\[Op:.*", "", error.message.strip()).splitlines()[0][:200]
