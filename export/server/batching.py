"""Dynamic batching: runs concurrent requests of a signature in one call."""

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
    """One request in the queue."""

    servable: Servable
    signature: Signature
    inputs: Arrays
    rows: int
    enqueued: float
    future: concurrent.futures.Future


class Batcher:
    """A queue that merges compatible requests into batches.

    Requests are compatible if version, signature, dtypes and all dimensions but the first are
    equal. A batch starts when it is full, or when its oldest request has waited `timeout_ms`.
    Requests that LiteRT answers do not wait; they are merged only if they come while all workers
    are busy. If a merged batch fails, only the faulty requests fail; see `run_joined`.

    Args:
        max_batch_size: most rows of a merged batch. A larger request runs alone.
        timeout_ms: milliseconds that a request waits for others to join.
        max_queue: most requests that may wait.
        workers: number of batches that run at the same time.
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
            servable: the version to run; the caller keeps it loaded until the future is done.
            signature: the signature to run.
            inputs: checked arrays by input name, of `rows` rows.
            rows: number of rows.

        Returns:
            A future of the outputs by name. Cancelling it removes a request that still waits.

        Raises:
            ServingError: RESOURCE_EXHAUSTED (HTTP 503) if the queue is full, UNAVAILABLE if the
                server is stopping.
        """
        future = concurrent.futures.Future()
        task = _Task(servable, signature, inputs, rows, time.monotonic(), future)
        with self._changed:
            if self._stopping:
                raise _stopped()
            waiting = sum(map(len, self._queues.values()))
            if waiting >= self._max_queue:
                message = f"{waiting} requests are already waiting: try again later"
                raise ServingError(Code.RESOURCE_EXHAUSTED, message, http_status=503)
            self._queues.setdefault(_key(task), deque()).append(task)
            self._changed.notify()
        return future

    def stop(self, timeout: float) -> None:
        """Rejects new requests, finishes the queued ones, and ends the workers.

        Requests that still wait after `timeout` seconds fail with UNAVAILABLE.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left = [task for queue in self._queues.values() for task in queue]
            self._queues.clear()
        for task in left:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(_stopped())

    def _work(self) -> None:
        while (tasks := self._next_batch()) is not None:
            tasks = [task for task in tasks if task.future.set_running_or_notify_cancel()]
            if tasks:
                self._run(tasks)

    def _next_batch(self) -> list[_Task] | None:
        """Waits until a batch may start and removes it from the queue.

        Returns None if the batcher is stopped and the queue is empty.
        """
        with self._changed:
            while True:
                left = None
                if self._queues:
                    key = min(self._queues, key=self._start_time)
                    left = self._start_time(key) - time.monotonic()
                    if left <= 0:
                        tasks = self._take(key)
                        if self._queues:
                            self._changed.notify()
                        return tasks
                elif self._stopping:
                    return None
                self._changed.wait(left)

    def _start_time(self, key: object) -> float:
        """The time at which a queue's first batch may start: at once if it need not wait."""
        queue = self._queues[key]
        full = sum(task.rows for task in queue) >= self._max_rows
        signature = queue[0].signature
        ready = full or self._stopping or not (signature.batchable and signature.waits)
        return queue[0].enqueued + (0.0 if ready else self._timeout)

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
        for number, found in run_joined(run, tasks[0].signature, requests):
            if isinstance(found, Exception):
                tasks[number].future.set_exception(found)
            else:
                tasks[number].future.set_result(found)


def run_joined(
    run: Callable[[Arrays], Arrays], signature: Signature, requests: Sequence[tuple[int, Arrays]]
) -> Iterator[tuple[int, Arrays | Exception]]:
    """Runs requests as one batch.

    A batch that fails is divided and its parts run again, and so on, so that only faulty requests
    fail. If the error names rows (see `macaron_tf.tasks.base.require`), the first part has all
    requests without these rows, so that good requests only wait for one more run. Otherwise the
    parts are halves. A failing run is short.

    Args:
        run: function from the inputs of a batch to its outputs.
        signature: the signature.
        requests: the number of rows and the inputs of each request.

    Yields:
        The number of a request, and its outputs or its exception.
    """
    waiting = [[*range(len(requests))]]
    while waiting:
        numbers = waiting.pop(0)
        chosen = [requests[number] for number in numbers]
        try:
            outputs = _run_merged(run, signature, chosen)
        except Exception as error:
            if len(numbers) == 1:
                yield numbers[0], error
                continue
            _LOG.info("a batch of %d requests failed, running parts: %s", len(numbers), error)
            parts = _parts(
                [rows for rows, _ in chosen], failed_rows(str(error)), signature.batchable
            )
            waiting[:0] = [[numbers[at] for at in part] for part in parts]
        else:
            yield from zip(numbers, outputs, strict=True)


def _run_merged(run, signature: Signature, requests: list[tuple[int, Arrays]]) -> list[Arrays]:
    if len(requests) == 1:
        return [run(requests[0][1])]
    ends = [*itertools.accumulate(rows for rows, _ in requests)]
    names = requests[0][1]
    outputs = run({name: np.concatenate([each[name] for _, each in requests]) for name in names})
    if any(array.ndim == 0 or array.shape[0] != ends[-1] for array in outputs.values()):
        signature.batchable = False
        raise ValueError(f"outputs of {signature.name!r} do not have one row per input row")
    parts = [slice(start, end) for start, end in itertools.pairwise([0, *ends])]
    return [{name: array[part] for name, array in outputs.items()} for part in parts]


def _parts(sizes: list[int], rows: set[int], halve: bool) -> list[list[int]]:
    """Divides the requests of a failed batch into parts to run again.

    Args:
        sizes: number of rows of each request.
        rows: the rows that the error names.
        halve: whether to divide a large batch in halves if no rows are named; otherwise each
            request is a part.

    Returns:
        The numbers of the requests in each part.
    """
    count, places = len(sizes), np.repeat(np.arange(len(sizes)), sizes)
    faulty = {int(places[row]) for row in rows if row < len(places)}
    if 0 < len(faulty) < count:
        return [sorted({*range(count)} - faulty), sorted(faulty)]
    most = (count + 1) // 2 if halve and count > 3 else 1
    return [[*range(at, min(at + most, count))] for at in range(0, count, most)]


def _stopped() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "the server is shutting down")


def _key(task: _Task) -> object:
    """The key of a request's queue, which is equal for requests that may be merged."""
    if not task.signature.batchable:
        return object()
    shapes = tuple((name, array.dtype.str, array.shape[1:]) for name, array in task.inputs.items())
    return (task.servable.version, id(task.servable), task.signature.name, shapes)
