"""One function in several processes of this machine."""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from macaron_tf.command_names import SCRIPT
from macaron_tf.errors import UserError
from macaron_tf.io.progress import other_bar

Job, Result = TypeVar("Job"), TypeVar("Result")

_ALONE = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


def results(
    function: Callable[[Job], Result], jobs: Iterable[Job], processes: int
) -> Iterator[Result]:
    """The results of a function for each job, in any order.

    A job is taken from `jobs` when a process is free for it. One job alone is done in this process.
    The processes are new ones: the caller's script is not run again in them, as multiprocessing
    does, they see no accelerator, and each has one thread. They end with this one, however it ends.

    Args:
        function: is pickled, as are the jobs and the results.

    Raises:
        UserError: a process was ended from outside; or any error of the function.
    """
    jobs = iter(jobs)
    first = list(itertools.islice(jobs, 2))
    jobs = itertools.chain(first, jobs)
    if processes < 2 or len(first) < 2:
        yield from map(function, jobs)
        return
    with contextlib.ExitStack() as ending:
        idle, busy = [_started(ending) for _ in range(processes)], []
        for connection in idle:
            _sent(connection, function)
        for job in jobs:
            if not idle:
                yield from _received(busy, idle)
            _sent(idle[-1], job)
            busy.append(idle.pop())
        while busy:
            yield from _received(busy, idle)


def _started(ending: contextlib.ExitStack) -> Connection:
    """Starts a process, which is killed by `ending`: then it is idle, or its work is not wanted."""
    ours, theirs = Pipe()
    # Under the name of our command, the package imports neither Keras nor all models.
    code = f"import sys; sys.argv[0] = {SCRIPT!r}"
    code += f"; from macaron_tf.io.processes import serve; serve({theirs.fileno()})"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **_ALONE, "PYTHONPATH": paths},
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C is for the caller alone
    )
    theirs.close()  # so that the other end is told when the process ends
    ending.callback(process.wait)
    ending.callback(process.kill)
    ending.callback(ours.close)
    return ours


def serve(descriptor: int) -> None:
    """Answers the caller of `results` through a pipe until that is closed."""
    ended = contextlib.suppress(EOFError, ConnectionError)
    with Connection(descriptor) as connection, other_bar(), ended:
        function = connection.recv()
        while True:
            job = connection.recv()
            try:
                answer = function(job), None
            except Exception as error:
                answer = None, error
            connection.send(answer)


def _received(busy: list[Connection], idle: list[Connection]) -> Iterator[Any]:
    """The results that have come, one at least; their processes become idle."""
    for connection in wait(busy):
        with _alive():
            result, error = connection.recv()
        if error:
            raise error
        busy.remove(connection)
        idle.append(connection)
        yield result


def _sent(connection: Connection, item: Any) -> None:
    with _alive():
        connection.send(item)


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    """Tells that the other process has ended."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise UserError(
            "a process was ended from outside, perhaps for want of memory: give the same command "
            "again, which goes on, with fewer processes or more memory"
        ) from error
