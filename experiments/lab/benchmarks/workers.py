"""Runs contenders in child processes that sleep on a pipe between their turns.

Two frameworks in one process disturb each other: they share CPU threads, the allocator and
process-wide settings. So each child has one framework. While it waits for its turn it uses no CPU.
"""

import contextlib
import functools
import gc
import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from macaron_tf.errors import UserError


def thread_variables(threads: int) -> dict[str, str]:
    """Environment variables that set the threads of TensorFlow, PyTorch and compiled kernels."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys(names, str(threads))


# With these variables the resident set of a child, on Linux, has only living tensors: oneDNN pools
# nothing, and malloc maps every tensor of 16 KiB or more separately and unmaps it when it is freed.
# A peak is then right to about a quarter of a MiB. TensorFlow's own statistics of oneDNN's pool
# leave out tensors below 256 KiB, which at L = 64 are all tensors.
GIVE_BACK_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 14), "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
CLEAR = pathlib.Path("/proc/self/clear_refs")


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes by which a call raises the resident set. Call `run` once or more before."""
    gc.collect()
    # Writing 5 resets the peak, which imports may have raised, to the present size: see proc(5).
    CLEAR.write_text("5")
    before = memory_of("VmRSS")
    run()
    return max(memory_of("VmHWM") - before, 0)


def memory_of(field: str, pid: int | str = "self") -> int:
    """Bytes of a process by Linux: its resident set `VmRSS`, or that set's peak `VmHWM`."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes[field].split()[0]) * 1024


@dataclass(frozen=True)
class Contender:
    """Work of a child process; `run` makes some steps and returns a number such as a loss."""

    run: Callable[[int], float]
    parameters: int = 0


class Worker(contextlib.AbstractContextManager):
    """A child process with the contenders of one framework; leaving the context ends it.

    Args:
        factory: `"package.module:function"`, a function that the child calls with `arguments` and
            that returns a dict of `Contender`s.
        arguments: keyword arguments of `factory`, as JSON can hold them.
        environment: variables that the child has besides this process's.

    Attributes:
        parameters: number of parameters of each contender, by name.
        cpu_seconds: CPU time of all threads of the child at the end of its latest turn.

    Raises:
        UserError: the child ended too early.
    """

    def __init__(self, factory: str, arguments: Mapping, environment: Mapping[str, str]):
        self.factory = factory
        self.cpu_seconds = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, factory, json.dumps(arguments)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.parameters: dict[str, int] = self._reply()

    def run(self, name: str, steps: int) -> float:
        """Has a contender do `steps` steps and returns its number; -1: `peak_of` one step."""
        with contextlib.suppress(BrokenPipeError):  # the child has ended: `_reply` reports it
            self._process.stdin.write(json.dumps([name, steps]) + "\n")
            self._process.stdin.flush()
        figure, self.cpu_seconds = self._reply()
        return figure

    def peak(self, name: str) -> int:
        """The most bytes that a contender's step adds, after two other steps: see `peak_of`.

        The child's environment must have `GIVE_BACK_MEMORY`.
        """
        self.run(name, 2)
        return int(self.run(name, -1))

    def __exit__(self, *_) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise UserError(
                f"the child process with {self.factory} ended with status "
                f"{self._process.returncode}: its error is above."
            )
        return json.loads(line)


def main() -> None:
    """The child process: answers each line with a line, until the parent closes the pipe."""
    # What libraries print goes to stderr, so that it is not taken for replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contenders = pkgutil.resolve_name(sys.argv[1])(**json.loads(sys.argv[2]))
    print(
        json.dumps({name: one.parameters for name, one in contenders.items()}),
        file=replies,
        flush=True,
    )
    for line in sys.stdin:
        name, steps = json.loads(line)
        run = contenders[name].run
        figure = run(steps) if steps >= 0 else peak_of(functools.partial(run, 1))
        print(json.dumps([figure, time.process_time()]), file=replies, flush=True)


if __name__ == "__main__":
    main()
