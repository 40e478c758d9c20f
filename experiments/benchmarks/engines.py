"""Our server beside NVIDIA Triton on one exported model: requests a second, and their times.

    .venv-engines/bin/python -m experiments.benchmarks.engines OUT --clients 1 8 --out DIR

OUT is a folder of versions whose `serving_default` takes `text`. Both servers run as processes on
127.0.0.1 with their default settings; each client asks one line after the other over a kept-alive
HTTP connection, in JSON. Answers are compared before anything is timed, and turns alternate.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from experiments.benchmarks.serving import made_up_lines
from experiments.command_line import argument, count, single_program
from macaron_tf.errors import UserError
from macaron_tf.io.paths import write_aside

OURS, TRITON, HOST, NAME = "export.serve", "NVIDIA Triton", "127.0.0.1", "model"
HTTP_PORT, GRPC_PORT = 18000, 18001
# The path of a request and, for a line, its body; the arrays of an answer by name.
Form = tuple[str, Callable[[str], dict], Callable[[dict], dict[str, list]]]
FORMS: dict[str, Form] = {
    OURS: (
        f"/v1/models/{NAME}:predict",
        lambda line: {"inputs": {"text": [line]}},
        lambda answer: answer["outputs"],
    ),
    TRITON: (
        f"/v2/models/{NAME}/infer",
        lambda line: {
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [line]}]
        },
        lambda answer: {
            x["name"]: x["data"] if x["shape"] == [1, 1] else [x["data"]] for x in answer["outputs"]
        },
    ),
}


@contextlib.contextmanager
def server(engine: str, folder: str) -> Iterator[int]:
    """The HTTP port of a server of a folder, which ends with the `with`."""
    words = {
        OURS: ["export.serve", folder, "--name", NAME, "--rest-port", "0", "--grpc-port", "0"],
        TRITON: ["export.triton", f"{NAME}={folder}", "--http-port", str(HTTP_PORT),
                 "--grpc-port", str(GRPC_PORT)],
    }[engine]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        found = re.search(rf"http://{HOST}:(\d+)", line)
        if not found:
            raise UserError(f"{engine} did not start: run python -m {' '.join(words)} to see why")
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


class Client:
    """A kept-alive connection to one of the engines."""

    def __init__(self, engine: str, port: int):
        self._path, self._form, self._arrays = FORMS[engine]
        self._connection = http.client.HTTPConnection(HOST, port, timeout=60)

    def __call__(self, line: str) -> dict[str, list]:
        """The answer to a line; a UserError where it is none."""
        self._connection.request("POST", self._path, json.dumps(self._form(line)))
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise UserError(f"{self._path} answers {response.status}: {body[:300].decode()}")
        return self._arrays(json.loads(body))


def turn(engine: str, port: int, lines: list[str], clients: int, seconds: float) -> list[float]:
    """Seconds that each request of a turn took."""
    taken: list[float] = []
    ends = time.monotonic() + seconds

    def ask(number: int) -> None:
        client = Client(engine, port)
        while (start := time.monotonic()) < ends:
            client(lines[(number + len(taken)) % len(lines)])
            taken.append(time.monotonic() - start)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def same(one: dict[str, list], other: dict[str, list]) -> bool:
    """Whether two answers have equal texts, and numbers equal to 1e-5."""
    return one.keys() == other.keys() and all(
        np.allclose(one[name], other[name], atol=1e-5)
        if np.asarray(one[name]).dtype.kind in "fi"
        else np.array_equal(one[name], other[name])
        for name in one
    )


def run(options: argparse.Namespace) -> None:
    """Starts both, compares, times, and prints a table."""
    lines = made_up_lines(64, options.words, seed=1)
    rows = []
    with server(OURS, options.folder) as ours, server(TRITON, options.folder) as triton:
        ports = {OURS: ours, TRITON: triton}
        for line in lines:
            one, other = (Client(engine, port)(line) for engine, port in ports.items())
            if not same(one, other):
                raise UserError(f"the answers to {line[:60]!r} differ: {one} and {other}")
        for clients in options.clients:
            turns: dict[str, list[list[float]]] = {engine: [] for engine in ports}
            for number in range(options.rounds + 1):
                for engine, port in ports.items():
                    taken = turn(engine, port, lines, clients, options.seconds)
                    turns[engine] += [taken] if number else []  # the first round warms up
            for engine, rounds in turns.items():
                every = np.concatenate(rounds)
                rates = [len(taken) / options.seconds for taken in rounds]
                rows.append(
                    {
                        "engine": engine,
                        "clients": clients,
                        "requests a second": round(statistics.median(rates), 1),
                        "lowest and highest turn": [round(min(rates), 1), round(max(rates), 1)],
                        "median ms": round(float(np.percentile(every, 50)) * 1e3, 2),
                        "99th percentile ms": round(float(np.percentile(every, 99)) * 1e3, 2),
                    }
                )
                print(rows[-1], flush=True)
    if options.out:
        command = f"python -m experiments.benchmarks.engines {' '.join(options.arguments)}"
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        record = {"command": command, "commit": commit, "cpus": os.cpu_count(), "rows": rows}
        place = pathlib.Path(options.out) / "results.json"
        write_aside(place, (json.dumps(record, indent=1) + "\n").encode())


main = single_program(
    "experiments.benchmarks.engines",
    __doc__,
    "experiments.benchmarks.engines:run",
    argument("folder", "an exported model's folder of versions", metavar="OUT"),
    count("--clients N", "that ask at once (%(default)s)", [1, 8], nargs="+"),
    count("--seconds S", "of a turn (%(default)s)", 4.0, 0.1),
    count("--rounds N", "turns of each, after one that warms up (%(default)s)", 3),
    count("--words N", "of the longest line (%(default)s)", 60, 2),
    argument("--out DIR", "for results.json"),
)

if __name__ == "__main__":
    raise SystemExit(main())
