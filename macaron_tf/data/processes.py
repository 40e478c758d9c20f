"""Worker processes that apply functions to items and return the results in order."""

import collections
import contextlib
import dataclasses
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe, connection
from typing import Any, TypeVar

from macaron_tf.errors import UserError
from macaron_tf.io.progress import other_bar

Context = TypeVar("Context")
Item = TypeVar("Item")
Result = TypeVar("Result")

_WORKER_ENVIRONMENT = {  # one thread, no GPU
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


@dataclasses.dataclass(eq=False)
class _Task:
    """A function call, and its result or error once the call has finished."""

    function: Callable
    item: Any
    is_done: bool = False
    result: Any = None
    error: Exception | None = None


class Processes(contextlib.AbstractContextManager):
    """A pool of worker processes, and a context manager that kills the workers on exit.

    If a worker is killed, a new worker replaces it and processes the same item again. Each worker
    has its own pipe, so that the parent process notices if a worker was killed after it had sent
    half of a result. With the shared queue of `concurrent.futures`, the parent would wait forever.
    Unlike the workers of `multiprocessing`, these workers do not import the caller's script, so
    that the script needs no `if __name__ == "__main__"`. Ctrl-C does not reach the workers. The
    workers end when their parent process ends.

    Args:
        count: number of worker processes; 1 means that the parent process does all the work.
        context: first argument of every function call, pickled once per worker.
    """

    def __init__(self, count: int, context: Any):
        self.count, self._context = count, context
        self._waiting: collections.deque[_Task] = collections.deque()
        self._workers: dict[connection.Connection, subprocess.Popen] = {}
        self._tasks: dict[connection.Connection, _Task] = {}  # the task of each busy worker

    def __exit__(self, *error) -> None:
        for process in self._workers.values():
            process.kill()
        for pipe, process in self._workers.items():
            pipe.close()
            process.wait()

    def map(
        self, function: Callable[[Context, Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yields `function(context, item)` for each item, in the order of the items.

        At most 2 `count` + 1 items of a call are in progress at a time. Several calls of `map` may
        run at the same time, and the results of one call may be the items of another call.

        Args:
            function: function defined at the top level of a module, so that it can be pickled.
            items: items that can be pickled; the results must be picklable too.

        Raises:
            UserError: three workers died on the same item.
            Exception: `function` raised an exception. If `function` raised exceptions for several
                items, the exception for the earliest item is raised.
        """
        if self.count == 1:
            for item in items:
                yield function(self._context, item)
            return
        pending: collections.deque[_Task] = collections.deque()
        for item in items:
            pending.append(_Task(function, item))
            self._waiting.append(pending[-1])
            self._exchange(timeout=0)
            if len(pending) > 2 * self.count:
                yield self._result_of(pending.popleft())
        while pending:
            yield self._result_of(pending.popleft())

    def _result_of(self, task: _Task) -> Any:
        while not task.is_done:
            self._exchange(timeout=None)
        if task.error is not None:
            raise task.error
        return task.result

    def _exchange(self, timeout: float | None) -> None:
        """Sends waiting tasks to idle workers, and collects results from busy workers.

        Args:
            timeout: maximum number of seconds to wait for a result; `None` means no limit.
        """
        self._send_tasks()
        for pipe in connection.wait(list(self._tasks), timeout):
            task = self._tasks.pop(pipe)
            try:
                task.result, task.error = pipe.recv()
                task.is_done = True
            except (EOFError, OSError) as error:
                raise UserError(
                    "a worker process died, perhaps for lack of memory: lower --processes, or give "
                    "--processes 1 to see the cause"
                ) from error
        self._send_tasks()

    def _send_tasks(self) -> None:
        while self._waiting and len(self._tasks) < self.count:
            if not self._workers:
                self._start_workers()
            pipe = (self._workers.keys() - self._tasks.keys()).pop()
            task = self._waiting.popleft()
            with contextlib.suppress(OSError):  # `_exchange` notices a dead worker
                pipe.send((task.function, task.item))
            self._tasks[pipe] = task

    def _start_workers(self) -> None:
        """Starts workers as new programs, because TensorFlow does not survive a fork.

        All new workers are started before the first one is used, so that the workers import
        TensorFlow in parallel.
        """
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # If argv[0] is the name of our command, the package imports neither Keras nor the models.
        code = "import sys; sys.argv[0] = 'macaron'; import macaron_tf.cli.program as program; "
        code += f"program.lean_imports(); from {__name__} import work; work(%d)"
        pipes = []
        for _ in range(self.count):
            pipe, worker_end = Pipe()
            self._workers[pipe] = subprocess.Popen(
                [sys.executable, "-c", code % worker_end.fileno()],
                env={**os.environ, **_WORKER_ENVIRONMENT, "PYTHONPATH": paths},
                pass_fds=[worker_end.fileno()],
                start_new_session=True,  # the terminal then does not send Ctrl-C to the worker
            )
            # Only the worker then holds this end, which closes when the worker ends.
            worker_end.close()
            pipes.append(pipe)
        for pipe in pipes:
            with contextlib.suppress(OSError):  # `_exchange` notices a dead worker
                pipe.send(self._context)


def work(descriptor: int) -> None:
    """Runs the main loop of a worker: executes calls from a pipe until the pipe is closed.

    Args:
        descriptor: file descriptor of the worker's end of the pipe.
    """
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
