"""Dynamic batching: runs concurrent requests for the same signature as one batch."""

import concurrent.futures
import dataclasses
import functools
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from export.server.errors import Code, ServingError
from export.server.servable import Servable, Signature
from macaron_tf.io.serving import failed_rows

_LOG = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(eq=False)
class _Task:
    """Request in the queue. `enqueued` is its arrival time as a value of `time.monotonic()`."""

    servable: Servable
    signature: Signature
    inputs: Arrays
    rows: int
    enqueued: float
    future: concurrent.futures.Future


class Batcher:
    """Queue that merges requests into batches.

    Requests can be merged if they have the same model version and the same batchable signature,
    and if their arrays have the same dtypes and the same dimensions except the first. A free worker
    starts a batch if the batch is full, or if its oldest request has waited `timeout_ms`. Requests
    for a signature with a LiteRT engine do not wait for a batch to fill, so they are merged only if
    several arrive while all workers are busy. If a batch fails, only its faulty requests fail (see
    `run_joined`).

    Args:
        max_batch_size: maximum number of rows in a merged batch. A larger request runs alone.
        timeout_ms: maximum time that a request waits for its batch to fill, in milliseconds.
        max_queue: maximum number of waiting requests.
        workers: maximum number of batches that run at the same time.
    """

    def __init__(self, max_batch_size: int, timeout_ms: float, max_queue: int, workers: int):
        self._max_rows = max_batch_size
        self._timeout = timeout_ms / 1000.0
        self._max_queue = max_queue
        self._queues: dict[object, deque[_Task]] = {}
        self._stopping = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, servable: Servable, signature: Signature, inputs: Arrays, rows: int
    ) -> concurrent.futures.Future:
        """Queues a request.

        Args:
            servable: the model version to run. The caller must keep the version loaded until the
                future is done.
            signature: the signature to run.
            inputs: dict mapping input name to an array with `rows` rows. The arrays must match the
                signature.
            rows: number of rows.

        Returns:
            A future, whose result is a dict mapping output name to array, or whose exception is the
            error of the request. If the future is cancelled before a worker takes the request, the
            request is not run.

        Raises:
            ServingError: RESOURCE_EXHAUSTED (HTTP status 503) if the queue is full, UNAVAILABLE if
                the server is shutting down.
        """
        future = concurrent.futures.Future()
        task = _Task(servable, signature, inputs, rows, time.monotonic(), future)
        with self._changed:
            if self._stopping:
                raise _shutting_down()
            waiting = sum(map(len, self._queues.values()))
            if waiting >= self._max_queue:
                message = f"the queue is full with {waiting} requests: try again later"
                raise ServingError(Code.RESOURCE_EXHAUSTED, message, http_status=503)
            self._queues.setdefault(_key(task), deque()).append(task)
            self._changed.notify()
        return future

    def stop(self, timeout: float) -> None:
        """Rejects new requests, runs the queued requests, and ends the worker threads.

        Args:
            timeout: seconds after which the requests that still wait fail with UNAVAILABLE. Batches
                that are running are not interrupted.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            remaining = [task for queue in self._queues.values() for task in queue]
            self._queues.clear()
        for task in remaining:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(_shutting_down())

    def _work(self) -> None:
        while (tasks := self._next_batch()) is not None:
            tasks = [task for task in tasks if task.future.set_running_or_notify_cancel()]
            if tasks:
                self._run(tasks)

    def _next_batch(self) -> list[_Task] | None:
        """Waits until a batch may start, and removes its requests from the queue.

        Returns:
            The requests of the batch, or `None` if the batcher is stopped and the queue is empty.
        """
        with self._changed:
            while True:
                seconds = None
                if self._queues:
                    key = min(self._queues, key=self._start_time)
                    seconds = self._start_time(key) - time.monotonic()
                    if seconds <= 0:
                        tasks = self._take(key)
                        if self._queues:
                            self._changed.notify()
                        return tasks
                elif self._stopping:
                    return None
                self._changed.wait(seconds)

    def _start_time(self, key: object) -> float:
        """Returns the `time.monotonic()` value at which a queue's first batch may start."""
        queue = self._queues[key]
        is_full = sum(task.rows for task in queue) >= self._max_rows
        signature = queue[0].signature
        is_ready = is_full or self._stopping or not (signature.batchable and signature.waits)
        return queue[0].enqueued + (0.0 if is_ready else self._timeout)

    def _take(self, key: object) -> list[_Task]:
        queue = self._queues[key]
        tasks = [queue.popleft()]
        rows = tasks[0].rows
        while queue and tasks[0].signature.batchable and rows + queue[0].rows <= self._max_rows:
            rows += queue[0].rows
            tasks.append(queue.popleft())
        if not queue:
            del self._queues[key]
        return tasks

    def _run(self, tasks: list[_Task]) -> None:
        requests = [(task.rows, task.inputs) for task in tasks]
        run = functools.partial(tasks[0].servable.run, tasks[0].signature)
        for index, result in run_joined(run, tasks[0].signature, requests):
            if isinstance(result, Exception):
                tasks[index].future.set_exception(result)
            else:
                tasks[index].future.set_result(result)


def run_joined(
    run: Callable[[Arrays], Arrays], signature: Signature, requests: Sequence[tuple[int, Arrays]]
) -> Iterator[tuple[int, Arrays | Exception]]:
    """Runs requests as one batch, and yields the outputs or the exception of each request.

    If the batch fails, it is divided into parts, and each part runs as a batch. A part that fails
    is divided again, until only faulty requests fail. If the error names faulty rows (see
    `macaron_tf.tasks.base.require`), one part has all requests without faulty rows, so that these
    requests succeed in the second run. `_split_batch` determines the parts.

    Args:
        run: function from the inputs of a batch to its outputs.
        signature: the signature that `run` runs. `batchable` is set to False if the outputs of a
            merged batch do not have one row per input row; each request then runs alone.
        requests: a pair (number of rows, dict of inputs) for each request.

    Yields:
        The index of a request in `requests`, and its outputs or its exception. If the batch fails,
        the requests may be yielded in another order.
    """
    waiting = [[*range(len(requests))]]
    while waiting:
        indices = waiting.pop(0)
        batch = [requests[index] for index in indices]
        try:
            outputs = _run_merged(run, signature, batch)
        except Exception as error:
            if len(indices) == 1:
                yield indices[0], error
                continue
            _LOG.info("running parts of a failed batch of %d requests: %s", len(indices), error)
            sizes = [rows for rows, _ in batch]
            parts = _split_batch(sizes, failed_rows(str(error)), signature.batchable)
            waiting[:0] = [[indices[i] for i in part] for part in parts]
        else:
            yield from zip(indices, outputs, strict=True)


def _run_merged(run, signature: Signature, requests: list[tuple[int, Arrays]]) -> list[Arrays]:
    if len(requests) == 1:
        return [run(requests[0][1])]
    ends = [*itertools.accumulate(rows for rows, _ in requests)]
    names = requests[0][1]
    arrays = {name: np.concatenate([inputs[name] for _, inputs in requests]) for name in names}
    outputs = run(arrays)
    if any(array.ndim == 0 or array.shape[0] != ends[-1] for array in outputs.values()):
        signature.batchable = False
        raise ValueError(
            f"the outputs of {signature.name!r} do not have one row per input row, so its requests "
            "cannot be merged"
        )
    parts = [slice(start, end) for start, end in itertools.pairwise([0, *ends])]
    return [{name: array[part] for name, array in outputs.items()} for part in parts]


def _split_batch(sizes: list[int], rows: set[int], halve: bool) -> list[list[int]]:
    """Divides the requests of a failed batch into parts.

    If only some of the requests have faulty rows, there are two parts: the requests without faulty
    rows, and the requests with faulty rows.

    Args:
        sizes: number of rows of each request.
        rows: indices of the rows that the error names as faulty.
        halve: whether to halve a batch of more than three requests if the error names rows of no
            request or of every request. If `halve` is False, or if there are at most three
            requests, each request becomes a part in this case.

    Returns:
        List of parts. Each part is a list of indices into `sizes`.
    """
    count, request_of_row = len(sizes), np.repeat(np.arange(len(sizes)), sizes)
    faulty = {int(request_of_row[row]) for row in rows if row < len(request_of_row)}
    if 0 < len(faulty) < count:
        return [sorted({*range(count)} - faulty), sorted(faulty)]
    part_size = (count + 1) // 2 if halve and count > 3 else 1
    return [[*range(i, min(i + part_size, count))] for i in range(0, count, part_size)]


def _shutting_down() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "the server is shutting down")


def _key(task: _Task) -> object:
    """Returns the queue key of a request. Requests with equal keys can be merged."""
    if not task.signature.batchable:
        return object()
    shapes = tuple((name, array.dtype.str, array.shape[1:]) for name, array in task.inputs.items())
    return (task.servable.version, id(task.servable), task.signature.name, shapes)
