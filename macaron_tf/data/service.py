"""Batches from a tf.data service in another process or on another machine, in order."""

import contextlib
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import prefetch
from macaron_tf.errors import UserError, first_line

_MAX_AWAY_SECONDS = (
    30.0  # a service restarts within this time; TensorFlow itself would wait forever
)
_MAX_SILENT_SECONDS = 600.0  # the service may read 2^16 rows over a network before the first batch
# gRPC uses HTTP/2. This is the start of a connection: the preface and an empty settings frame (type
# 4). A live service answers with its own settings frame. A hanging process does not answer.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# TensorFlow registers the first Python function of a process under this name (`tf.py_function`).
_FUNCTION_NAME = "pyfunc_0"


@contextlib.contextmanager
def register_function(function: Callable[[bytes, int], list[np.ndarray]]) -> Iterator[None]:
    """Registers a Python function that datasets from other processes can call in this process.

    The function stays registered until the `with` block ends. The graph of such a dataset calls the
    function by `call_registered_function`.

    Args:
        function: function from a request and an integer to a list with the arrays of a batch.

    Raises:
        RuntimeError: this process has already wrapped a Python function as a TensorFlow operation.
    """
    with tf.Graph().as_default() as graph:  # the graph keeps the function alive
        tf.numpy_function(function, [tf.constant(b""), tf.constant(0, tf.int64)], [tf.int32])
    [operation] = [op for op in graph.get_operations() if op.type == "PyFunc"]
    if operation.get_attr("token").decode() != _FUNCTION_NAME:
        raise RuntimeError(
            "this process has already wrapped a Python function as a TensorFlow operation: call "
            "register_function() before any other tf.numpy_function or tf.py_function"
        )
    yield


def call_registered_function(
    request: str, index: tf.Tensor, spec: Mapping[str, tf.TensorSpec]
) -> dict[str, tf.Tensor]:
    """Calls the function that `register_function` registered, from the graph of a dataset.

    A tf.data service receives the dataset as a graph. When a worker of the service runs the graph,
    TensorFlow looks up the function by name in the process of the worker.

    Args:
        request: first argument of the function.
        index: second argument of the function, a scalar int64.
        spec: dict mapping name to the specification of each array that the function returns, in the
            order of the returned list.

    Returns:
        Dict mapping the names in `spec` to the arrays.
    """
    dtypes = [tensor_spec.dtype for tensor_spec in spec.values()]
    arrays = tf.raw_ops.PyFuncStateless(input=[request, index], token=_FUNCTION_NAME, Tout=dtypes)
    return {
        name: tf.ensure_shape(array, tensor_spec.shape)
        for (name, tensor_spec), array in zip(spec.items(), arrays, strict=True)
    }


def through_service(dataset: tf.data.Dataset, addresses: str, process: int = 0) -> tf.data.Dataset:
    """Computes the batches of a dataset in a tf.data service, and returns them in the same order.

    `python -m experiments.data_service` starts a service with one worker, which keeps the order of
    the batches. If a service had several workers, each worker would compute all batches, and the
    batches would arrive in any order. A worker that restarts begins at the first batch again. Each
    batch therefore carries its index, and a wrong index ends the run. To use more machines, start
    one service for each training process.

    Args:
        dataset: dataset built from TensorFlow operations and `call_registered_function`, without
            Python generators. The service must find the dataset's files at the same absolute paths.
        addresses: HOST:PORT of the service. Several addresses are separated by commas. With n
            addresses, training process i uses the address with index i modulo n.
        process: index of this training process.

    Returns:
        Dataset with the structure and cardinality of `dataset`. Iteration raises a
        tf.errors.OpError if the service fails, does not answer for half a minute, sends no batch
        for ten minutes, or sends a batch with a wrong index. `service_error` converts this error to
        a `UserError`.

    Raises:
        UserError: the address for this process is malformed, no service answers at the address, or
            the service does not accept the dataset.
    """
    address_list = addresses.split(",")
    address = address_list[process % len(address_list)].strip()
    check_address(address)
    distribute = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.OFF, f"grpc://{address}"
    )
    try:
        served = dataset.enumerate().apply(distribute)
    except tf.errors.OpError as error:
        raise UserError(
            f"the data service {address} does not accept the dataset ({_first_line(error)}): give "
            "the address that the service printed when it started"
        ) from error
    checked = tf.data.Dataset.from_generator(
        lambda: _checked_batches(served, address), output_signature=dataset.element_spec
    )
    return prefetch(checked, dataset.cardinality())


def check_addresses(addresses: str | None) -> None:
    """Calls `check_address` for each of the comma-separated addresses in `addresses`, if any."""
    for address in filter(None, map(str.strip, (addresses or "").split(","))):
        check_address(address)


def check_address(address: str) -> None:
    """Raises a UserError if an address is not HOST:PORT, or if no service answers within 5 s."""
    if not re.fullmatch(r"[^:/\s]+:\d{1,5}", address):
        raise UserError(
            f"the address {address!r} of a data service is malformed: give HOST:PORT, such as "
            "localhost:5050"
        )
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(_HTTP2_GREETING)
            if connection.recv(9)[3:4] != b"\4":
                raise ConnectionError("not HTTP/2")
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no data service responds at {address}: start a service on {host} with `python -m "
            f"experiments.data_service --port {port}`, or give another address"
        ) from error


def service_error(error: tf.errors.OpError) -> UserError | None:
    """Converts an error from `through_service` to a `UserError`.

    Returns `None` if the cause of `error` is not a failed service.
    """
    match = re.search(r"UserError: (.*the data service .*)", error.message)
    return UserError(match[1]) if match else None


def _checked_batches(served: tf.data.Dataset, address: str) -> Iterator:
    """Yields the batches of `served`, or raises a `UserError` if the service fails.

    TensorFlow waits forever for a dead service. A separate thread therefore reads the batches. This
    generator waits for the thread, and meanwhile checks every few seconds that the service answers.
    """
    items: queue.Queue = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def read():
        try:
            for item in served.as_numpy_iterator():
                items.put(item)
                if stopped.is_set():
                    return
            items.put(None)
        except tf.errors.OpError as error:
            items.put(error)

    threading.Thread(target=read, daemon=True).start()
    expected = 0
    try:
        while (item := _next(items, address)) is not None:
            if isinstance(item, tf.errors.OpError):
                raise UserError(
                    f"the data service {address} failed ({_first_line(item)}): look for the cause "
                    "in the service's output, start the service again, then run the same command "
                    "again"
                ) from item
            index, batch = item
            if index != expected:
                raise UserError(
                    f"the data service {address} sent batch {index} instead of {expected}, so it "
                    "has several workers, or its worker was restarted: start the service again "
                    "with one worker, then run the same command again"
                )
            expected += 1
            yield batch
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            items.get_nowait()  # frees the slot of the queue, so that the reading thread can end


def _next(items: queue.Queue, address: str):
    """Returns the next item that the reading thread has put into the queue.

    Raises:
        UserError: the service does not answer for `_MAX_AWAY_SECONDS`, or sends no batch for
            `_MAX_SILENT_SECONDS`.
    """
    began = answered = time.monotonic()
    while True:
        try:
            return items.get(timeout=min(5.0, _MAX_AWAY_SECONDS / 3))
        except queue.Empty:
            now = time.monotonic()
        with contextlib.suppress(UserError):
            check_address(address)
            answered = now
        if now - answered > _MAX_AWAY_SECONDS:
            raise UserError(
                f"the data service {address} has stopped responding: start the service again, "
                "then run the same command again"
            )
        if now - began > _MAX_SILENT_SECONDS:
            raise UserError(
                f"the data service {address} sent no batch in {now - began:.0f} seconds: check "
                "that this machine can reach the service's worker, then run the same command again"
            )


def _first_line(error: tf.errors.OpError) -> str:
    """Returns the message of a UserError inside `error`, or TensorFlow's own message.

    TensorFlow's message is shortened to its first line without node names, and to 200 characters.
    """
    if match := re.search(r"UserError: (.*)", error.message):
        return match[1]
    message = re.sub(r"\{\{.*?\}\} *|\[Op:.*", "", error.message)
    return first_line(error, message)[:200]
