"""Dynamic batching: runs concurrent requests for the same signature as one batch."""

import asyncio
import concurrent.futures
import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from export.server.config import ServerConfig
from export.server.errors import ServingError, from_exception
from export.server.servable import Arrays, Servable
from macaron_tf.io.serving import failed_rows


@dataclasses.dataclass(eq=False)
class _Request:
    """Request in the queue. `enqueued` is its arrival time by the clock of the event loop."""

    servable: Servable
    signature: str
    inputs: Arrays
    enqueued: float
    future: asyncio.Future

    def __post_init__(self):
        self.rows = len(next(iter(self.inputs.values())))


class Batcher:
    """Queue that merges requests into batches, which run in threads.

    Requests for the same signature of the same model version are merged. A free worker starts a
    batch if the batch is full, or if its oldest request has waited `batch_timeout_ms`. Requests for
    a signature with a LiteRT engine do not wait for a batch to fill, so they are merged only if
    several arrive while all workers are busy. If a batch fails, only its faulty requests fail (see
    `run_joined`).

    All methods run in the event loop, so the queue needs no lock.
    """

    def __init__(self, config: ServerConfig):
        self._config = config
        self._idle = config.workers
        self._pool = concurrent.futures.ThreadPoolExecutor(config.workers, "batch")
        self._queues: dict[tuple[Servable, str], deque[_Request]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, servable: Servable, signature: str, inputs: Arrays) -> asyncio.Future:
        """Queues a request, for a future dict of arrays, which must not be cancelled."""
        waiting = sum(map(len, self._queues.values()))
        if waiting >= self._config.max_queue:
            raise ServingError(503, f"the queue is full with {waiting} requests: try again later")
        loop = asyncio.get_running_loop()
        request = _Request(servable, signature, inputs, loop.time(), loop.create_future())
        self._queues.setdefault((servable, signature), deque()).append(request)
        self._start_batches()
        return request.future

    def _start_batches(self) -> None:
        """Starts batches while a worker is idle; sets a timer for a batch that may still fill."""
        loop = asyncio.get_running_loop()
        if self._timer:
            self._timer.cancel()
        while self._idle and self._queues:
            key = min(self._queues, key=self._start_time)
            wait = self._start_time(key) - loop.time()
            if wait > 0:
                self._timer = loop.call_later(wait, self._start_batches)
                return
            self._idle -= 1
            requests = self._take(key)
            batch = loop.run_in_executor(self._pool, run_joined, requests)
            batch.add_done_callback(functools.partial(self._finish, requests))

    def _start_time(self, key: tuple[Servable, str]) -> float:
        """Returns the time at which a queue's first batch may start."""
        queue, (servable, signature) = self._queues[key], key
        is_full = sum(request.rows for request in queue) >= self._config.max_batch_size
        waits = servable.waits(signature) and not is_full
        return queue[0].enqueued + (self._config.batch_timeout_ms / 1000 if waits else 0.0)

    def _take(self, key: tuple[Servable, str]) -> list[_Request]:
        """Removes the requests of the next batch from a queue."""
        queue = self._queues[key]
        requests = [queue.popleft()]
        rows = requests[0].rows
        while queue and rows + queue[0].rows <= self._config.max_batch_size:
            requests.append(queue.popleft())
            rows += requests[-1].rows
        if not queue:
            del self._queues[key]
        return requests

    def _finish(self, requests: list[_Request], batch: asyncio.Future) -> None:
        for request, result in zip(requests, batch.result(), strict=True):
            if isinstance(result, Exception):
                request.future.set_exception(from_exception(result))
            else:
                request.future.set_result(result)
        self._idle += 1
        self._start_batches()


def run_joined(requests: Sequence[_Request]) -> list[Arrays | Exception]:
    """Runs requests as one batch, and returns the outputs or the exception of each request.

    If the batch fails and the error names faulty rows (see `macaron_tf.tasks.base.require`), the
    other requests run again as one batch. Each request that remains then runs alone.
    """
    try:
        return _run_merged(requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        request_of_row = np.repeat(np.arange(len(requests)), [one.rows for one in requests])
        rows = [row for row in failed_rows(str(error)) if row < len(request_of_row)]
    faulty = {int(index) for index in request_of_row[rows]} or {*range(len(requests))}
    good = [index for index in range(len(requests)) if index not in faulty]
    results: dict[int, Arrays | Exception] = {}
    for part in [good] * bool(good) + [[index] for index in sorted(faulty)]:
        outputs = run_joined([requests[index] for index in part])
        results.update(zip(part, outputs, strict=True))
    return [results[index] for index in range(len(requests))]


def _run_merged(requests: Sequence[_Request]) -> list[Arrays]:
    servable, signature, names = requests[0].servable, requests[0].signature, requests[0].inputs
    joined = {name: np.concatenate([one.inputs[name] for one in requests]) for name in names}
    outputs = servable.run(signature, joined)
    ends = [0, *itertools.accumulate(one.rows for one in requests)]
    parts = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return [{name: array[part] for name, array in outputs.items()} for part in parts]
