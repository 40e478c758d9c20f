"""Contenders in child processes that sleep on a pipe between their turns.

Two frameworks in one process share what each wants for itself: their thread pools, the allocator,
process-wide settings. A child has one framework, and while it waits for its turn it takes no CPU.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from macaron_tf.errors import UserError


@dataclass(frozen=True)
class Contender:
    """What a child makes: work to time.

    Attributes:
        run: does so many steps and returns a figure of theirs, such as a loss.
        parameters: how many numbers are trained.
    """

    run: Callable[[int], float]
    parameters: int


class Worker:
    """A child process with some contenders, those of one framework.

    Args:
        factory: `"package.module:function"`; called in the child with `arguments`, it returns a
            dict of `Contender`s.
        arguments: of the factory, whatever JSON can hold.
        environment: variables that the child has besides this process's.

    Attributes:
        parameters: of each contender, by name.
        cpu_seconds: of the child, all threads, when its latest turn ended.

    Raises:
        UserError: the child ended before it was ready.
    """

    def __init__(
        self, factory: str, arguments: Mapping, environment: Mapping[str, str] | None = None
    ):
        self.factory = factory
        self.cpu_seconds = 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, factory, json.dumps(arguments)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.parameters: dict[str, int] = self._reply()

    def run(self, name: str, steps: int) -> float:
        """Has a contender do so many steps; returns its figure.

        Raises:
            UserError: the child has ended.
        """
        with contextlib.suppress(BrokenPipeError):  # then it has ended, and the reply tells
            self._process.stdin.write(json.dumps([name, steps]) + "\n")
            self._process.stdin.flush()
        reply = self._reply()
        self.cpu_seconds = reply["cpu_seconds"]
        return reply["figure"]

    def close(self) -> None:
        """Ends the child."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise UserError(
                f"the child process with {self.factory} ended with status "
                f"{self._process.returncode}: its error is above."
            )
        return json.loads(line)


@contextlib.contextmanager
def worker_processes(
    factories: Sequence[str], arguments: Mapping, environment: Mapping[str, str] | None = None
) -> Iterator[list[Worker]]:
    """A `Worker` for each factory, all ended with the context; `arguments` and the rest as there.

    They start one after the other: what is compiled then is compiled with all cores.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for factory in factories:
            workers.append(Worker(factory, arguments, environment))
            stack.callback(workers[-1].close)
        yield workers


def main() -> None:
    """The child: a line in, a line out, until the parent closes the pipe."""
    # Libraries print; what they print belongs on stderr, not among the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = sys.argv[1].partition(":")
    contenders = getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))

    def reply(content) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    reply({name: contender.parameters for name, contender in contenders.items()})
    for line in sys.stdin:
        name, steps = json.loads(line)
        figure = contenders[name].run(steps)
        reply({"figure": figure, "cpu_seconds": time.process_time()})


if __name__ == "__main__":
    main()
