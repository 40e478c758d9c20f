"""Child processes that run the implementations under comparison (contenders) of a benchmark.

Two frameworks in one process would share CPU threads, the allocator and process-wide settings.
Therefore each child process imports one framework. Between its runs, a child process waits on a
pipe and uses no CPU time.
"""

import contextlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from macaron_tf.errors import UserError


@dataclass(frozen=True)
class Contender:
    """An implementation under comparison, which a child process runs and a benchmark times.

    Attributes:
        run_steps: function that runs a given number of steps, such as training steps, and returns a
            number, such as the loss.
        parameters: number of parameters of the model.
    """

    run_steps: Callable[[int], float]
    parameters: int = 0


class Worker(contextlib.AbstractContextManager):
    """A context manager for a child process that runs the `Contender`s of one framework.

    Args:
        factory: name of a function, as `"package.module:function"`. The child process calls the
            function, which returns a dict mapping a name to a `Contender`.
        arguments: keyword arguments of the function, which are passed as JSON.

    Attributes:
        parameters: dict mapping the name of a `Contender` to its parameter count.
        cpu_seconds: CPU seconds of all threads in the child process, at the end of its last run.
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
        """Runs `run_steps` of a `Contender` in the child process, and returns its result."""
        # If the child process has ended, `_reply` raises.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([name, steps]) + "\n")
            self._process.stdin.flush()
        result, self.cpu_seconds = self._reply()
        return result

    def __exit__(self, *_) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            status = f"exit status {self._process.returncode}"
            raise UserError(f"{self.factory} ended with {status}: see its error message above")
        return json.loads(line)


def main() -> None:
    """Runs the child process: a request per line of stdin, see `Worker.run`, until it is closed."""
    # Redirects stdout of libraries to stderr, because stdout carries the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contenders = pkgutil.resolve_name(sys.argv[1])(**json.loads(sys.argv[2]))
    parameters = {name: contender.parameters for name, contender in contenders.items()}
    print(json.dumps(parameters), file=replies, flush=True)
    for line in sys.stdin:
        name, steps = json.loads(line)
        result = contenders[name].run_steps(steps)
        print(json.dumps([result, time.process_time()]), file=replies, flush=True)


if __name__ == "__main__":
    main()
