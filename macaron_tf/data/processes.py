"""Worker processes that apply functions to items and return the results in order."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe, connection
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.io.progress import other_bar

_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_WORKER_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", **dict.fromkeys(_THREADS, "1")}


class Processes(contextlib.AbstractContextManager):
    """A pool of worker processes, and a context manager that kills the workers on exit.

    Each worker has its own pipe, so that the parent process notices if a worker was killed after it
    had sent half of a result. With the shared queue of `concurrent.futures`, the parent would wait
    forever. Unlike the workers of `multiprocessing`, these workers do not import the caller's
    script, so that the script needs no `if __name__ == "__main__"`. Ctrl-C does not reach the
    workers. The workers end when their parent process ends.

    Args:
        count: number of worker processes; 1 means that the parent process does all the work.
        context: first argument of every function call, pickled once per worker.
    """

    def __init__(self, count: int, context: Any):
        self.count, self._context = count, context
        self._workers: dict[connection.Connection, subprocess.Popen] = {}
        self._own = threading.local()  # pipe to the worker that a thread starts and waits for
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "worker", self._start_worker)

    def __exit__(self, *error) -> None:
        for process in [*self._workers.values()]:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for pipe, process in self._workers.items():
            pipe.close()
            process.wait()

    def map(self, function: Callable[[Any, Any], Any], items: Iterable) -> Iterator:
        """Yields `function(context, item)` for each item, in the order of the items.

        At most 2 `count` + 1 items of a call are in progress at a time. Several calls of `map` may
        run at the same time, and the results of one call may be the items of another call. If
        `function` raises exceptions for several items, the earliest item's exception is raised.
        No worker is started for a single item.
        """
        items = iter(items)
        first_two = list(itertools.islice(items, 2))
        items = itertools.chain(first_two, items)
        if self.count == 1 or len(first_two) < 2:
            yield from map(functools.partial(function, self._context), items)
            return
        pending: collections.deque[concurrent.futures.Future] = collections.deque()
        for item in items:
            pending.append(self._threads.submit(self._call, function, item))
            if len(pending) > 2 * self.count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _call(self, function: Callable, item: Any) -> Any:
        """Calls a function in the worker of this thread, and waits for the result."""
        try:
            self._own.pipe.send((function, item))
            result, error = self._own.pipe.recv()
        except (EOFError, OSError) as error:
            mend = "give --processes 1 to see the cause"
            raise UserError(f"a worker died, perhaps for lack of memory: {mend}") from error
        if error is not None:
            raise error
        return result

    def _start_worker(self) -> None:
        """Starts a worker as a new program, because TensorFlow does not survive a fork."""
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # If argv[0] is the name of our command, the package imports neither Keras nor the models.
        code = "import sys; sys.argv[0] = 'macaron'; import macaron_tf.cli.program as program; "
        code += f"program.begin_command(); from {__name__} import work; work(%d)"
        self._own.pipe, worker_end = Pipe()
        self._workers[self._own.pipe] = subprocess.Popen(
            [sys.executable, "-c", code % worker_end.fileno()],
            env={**os.environ, **_WORKER_ENVIRONMENT, "PYTHONPATH": paths},
            pass_fds=[worker_end.fileno()],
            start_new_session=True,  # the terminal then does not send Ctrl-C to the worker
        )
        # Only the worker then holds this end, which closes when the worker ends.
        worker_end.close()
        with contextlib.suppress(OSError):  # `_call` notices a dead worker
            self._own.pipe.send(self._context)


def work(descriptor: int) -> None:
    """Runs the main loop of a worker: executes calls from a pipe until the pipe is closed."""
    pipe = connection.Connection(descriptor)
    with pipe, other_bar(), contextlib.suppress(EOFError, OSError):
        context = pipe.recv()
        while True:
            function, item = pipe.recv()
            result = error = None
            try:
                result = function(context, item)
            except Exception as raised:  # its text, because many exceptions cannot be pickled
                known = isinstance(raised, UserError)
                text = str(raised) if known else f"{type(raised).__name__}: {raised}"
                error = UserError(text) if known else RuntimeError(text)
                error.add_note(traceback.format_exc())
            pipe.send((result, error))
