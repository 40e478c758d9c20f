"""Runs functions on chunks of a corpus in several processes, with the results in order."""

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

from macaron_tf.command_names import SCRIPT
from macaron_tf.errors import UserError
from macaron_tf.io.progress import other_bar

Context = TypeVar("Context")
Item = TypeVar("Item")
Result = TypeVar("Result")

_ALONE = {  # one thread, no GPU
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
_LIVES = 3  # workers that may die on an item before the work is given up


@dataclasses.dataclass(eq=False)
class _Task:
    """A call of a function, and later its result or error."""

    function: Callable
    item: Any
    is_done: bool = False
    result: Any = None
    error: Exception | None = None
    lost: int = 0  # workers that ended during this task


class Processes(contextlib.AbstractContextManager):
    """Worker processes that apply functions to items; a context manager that ends them on exit.

    A worker that is killed is replaced, and its item is processed again. Each worker has a pipe of
    its own, whose reader notices a message that is cut off; with the shared queue of
    `concurrent.futures` it would wait for the rest forever. Unlike multiprocessing's, workers do
    not run the caller's script again, so it needs no `if __name__ == "__main__"`. Ctrl-C does not
    reach the workers; they end when their parent does.

    Args:
        count: number of processes; 1: all work is done in this process.
        context: first argument of every call, pickled once for each worker.
    """

    def __init__(self, count: int, context: Any):
        self.count, self._context = count, context
        self._waiting: collections.deque[_Task] = collections.deque()
        self._workers: dict[connection.Connection, subprocess.Popen] = {}
        self._tasks: dict[connection.Connection, _Task] = {}  # of the busy workers

    def __exit__(self, *error) -> None:
        for process in self._workers.values():
            process.kill()
        for pipe in list(self._workers):
            self._remove(pipe)

    def map(
        self, function: Callable[[Context, Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """Yields `function(context, item)` for each item, in the order of the items.

        At most 2 `count` + 1 items are in progress. Several maps may share the workers, and the
        results of one map may be the items of another.

        Args:
            function: at the top level of a module. Functions, items and results are pickled.

        Raises:
            UserError: three workers in succession died on the same item.
            Exception: the first exception that the function raised, in the order of the items.
        """
        if self.count == 1:
            for item in items:
                yield function(self._context, item)
            return
        begun: collections.deque[_Task] = collections.deque()
        for item in items:
            begun.append(_Task(function, item))
            self._waiting.append(begun[-1])
            self._exchange(timeout=0)
            if len(begun) > 2 * self.count:
                yield self._result_of(begun.popleft())
        while begun:
            yield self._result_of(begun.popleft())

    def _result_of(self, task: _Task) -> Any:
        while not task.is_done:
            self._exchange(timeout=None)
        if task.error is not None:
            raise task.error
        return task.result

    def _exchange(self, timeout: float | None) -> None:
        """Collects available results and hands out tasks; waits up to `timeout` for a result."""
        self._hand_out()
        for pipe in connection.wait(list(self._tasks), timeout):
            task = self._tasks.pop(pipe)
            try:
                task.result, task.error = pipe.recv()
                task.is_done = True
            except (EOFError, OSError):
                self._lose(pipe, task)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and len(self._tasks) < self.count:
            if len(self._workers) < self.count:
                self._add(self.count - len(self._workers))
            pipe = (self._workers.keys() - self._tasks.keys()).pop()
            task = self._waiting.popleft()
            try:
                pipe.send((task.function, task.item))
                self._tasks[pipe] = task
            except OSError:
                self._lose(pipe, task)

    def _lose(self, pipe: connection.Connection, task: _Task) -> None:
        """Returns the task of a worker that died to the head of the waiting tasks."""
        self._remove(pipe)
        task.lost += 1
        if task.lost >= _LIVES:
            raise UserError(
                f"{_LIVES} worker processes ended on the same part of the text, perhaps for want "
                "of memory: give fewer --processes"
            )
        self._waiting.appendleft(task)

    def _add(self, count: int) -> None:
        """Starts workers as new programs, because TensorFlow does not survive a fork.

        All import TensorFlow at the same time.
        """
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # With our command's name in argv, the package imports neither Keras nor all models.
        code = f"import sys; sys.argv[0] = {SCRIPT!r}; import macaron_tf.cli.program as program; "
        code += f"program.lean_imports(); from {__name__} import work; work(%d)"
        added = []
        for _ in range(count):
            pipe, theirs = Pipe()
            self._workers[pipe] = subprocess.Popen(
                [sys.executable, "-c", code % theirs.fileno()],
                env={**os.environ, **_ALONE, "PYTHONPATH": paths},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # out of Ctrl-C's reach
            )
            theirs.close()  # only the worker's end remains, which closes with the worker
            added.append(pipe)
        for pipe in added:
            with contextlib.suppress(OSError):  # if it has died, `_lose` handles it later
                pipe.send(self._context)

    def _remove(self, pipe: connection.Connection) -> None:
        process = self._workers.pop(pipe)
        pipe.close()
        process.wait()


def work(descriptor: int) -> None:
    """Main function of a worker: runs calls from a pipe until it is closed."""
    pipe = connection.Connection(descriptor)
    with pipe, other_bar(), contextlib.suppress(EOFError, OSError):
        context = pipe.recv()
        while True:
            function, item = pipe.recv()
            result = error = None
            try:
                result = function(context, item)
            except Exception as raised:
                raised.add_note(traceback.format_exc())
                error = raised
            pipe.send((result, error))
