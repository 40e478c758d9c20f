"""Contenders in child processes that sleep on a pipe between their turns.

Two frameworks in one process share what each wants for itself: their thread pools, the allocator,
process-wide settings. A child has one framework, and while it waits for its turn it takes no CPU.
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
    """Environment variables by which TensorFlow, PyTorch and its compiled kernels count threads."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return dict.fromkeys(names, str(threads))


# With these a child's resident set, on Linux, counts only living tensors: it is without oneDNN's
# pool, and malloc maps every tensor of 16 KiB or more by itself and unmaps it when it dies. A peak
# is then right to a quarter of a MiB or so. TensorFlow's own statistics of oneDNN's pool leave out
# tensors below 256 KiB: at L = 64 all there are.
GIVE_BACK_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 14), "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
CLEAR = pathlib.Path("/proc/self/clear_refs")


def peak_of(run: Callable[[], object]) -> int:
    """Bytes by which a call, not the first, raises the resident set at most."""
    gc.collect()
    # proc(5), of clear_refs: 5 sets the peak, which importing may have made, to the present size.
    CLEAR.write_text("5")
    before = memory_of("VmRSS")
    run()
    return max(memory_of("VmHWM") - before, 0)


def memory_of(field: str, pid: int | str = "self") -> int:
    """Bytes that Linux notes of a process: its resident set VmRSS, or the set's peak VmHWM."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes[field].split()[0]) * 1024


@dataclass(frozen=True)
class Contender:
    """Work of a child: does steps and returns a figure, such as a loss."""

    run: Callable[[int], float]
    parameters: int = 0


class Worker(contextlib.AbstractContextManager):
    """A child process with some contenders, those of one framework; ended with the context.

    A UserError says where the child ended before its time.

    Args:
        factory: `"package.module:function"`; called in the child with `arguments`, which JSON can
            hold, it returns a dict of `Contender`s.
        environment: variables that the child has besides this process's.

    Attributes:
        parameters: of each contender, by name.
        cpu_seconds: of the child, all threads, when its latest turn ended.
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
        """Has a contender do so many steps; returns its figure. -1: one step's `peak_of`."""
        with contextlib.suppress(BrokenPipeError):  # then it has ended, and the reply tells
            self._process.stdin.write(json.dumps([name, steps]) + "\n")
            self._process.stdin.flush()
        figure, self.cpu_seconds = self._reply()
        return figure

    def peak(self, name: str) -> int:
        """Bytes that a contender's step, not its first two, adds at most: see `peak_of`.

        The child needs `GIVE_BACK_MEMORY`.
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
    """The child: a line in, a line out, until the parent closes the pipe."""
    # Libraries print: that belongs on stderr, not among the replies.
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
