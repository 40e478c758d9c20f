"""Soak test, which checks the answers of a server under load while model versions change.

    python -m experiments.lab.benchmarks.soak --minutes 2                # short
    python -m experiments.lab.benchmarks.soak --minutes 60 --clients 64 --malformed 100000 --out DIR

The test runs `macaron serve` in a process of its own on 127.0.0.1. The model returns each
text in upper case, with the prefix "even:" or "odd:" for the parity of the model version. Clients
send requests over REST and gRPC and check every answer. Other clients send malformed requests.
Meanwhile, the test adds new versions and deletes random versions. Some new versions are damaged or
copied slowly. Every second, the test reads the resident memory of the server from /proc.

The report gives the numbers of lost and wrong answers. With `--out`, it is also written to
`results.json` and `README.md`. The exit status is 1 if an answer is lost or wrong, if no answer is
right, if the server crashes, if the answer to a malformed request is not a client error, or if the
server's log has a traceback.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from experiments.lab.benchmarks.harness import save
from experiments.lab.benchmarks.workers import process_memory
from experiments.versions import commit
from macaron_tf.cli.arguments import count, local_path_argument, single_program
from macaron_tf.errors import UserError

NAME, HOST = "toy", "127.0.0.1"
_PATH = f"/v1/models/{NAME}"
_SECONDS = 60.0  # timeout of a request; an answer that takes longer counts as lost
_TEXTS = ["a", "dog", "größe", "ride", "\u03b1\u03b2", "x" * 300, ""]


def _write_model(folder: pathlib.Path, tag: str) -> None:
    """Writes a SavedModel that maps a text to `tag`, a colon and the text in upper case."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def __call__(self, text):
            return {"said": tf.strings.join([f"{tag}:", tf.strings.upper(text, "utf-8")])}

    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.__call__})


class Soak:
    """A soak test, with its clients, model versions and results.

    Args:
        folder: folder of the served model, which has a subfolder for each version.
        templates: folders of two models. Versions with an even number are copies of the first
            model, and versions with an odd number are copies of the second model.
        seed: random seed of texts, malformed requests and versions.
    """

    def __init__(self, folder: pathlib.Path, templates: list[pathlib.Path], seed: int):
        self.folder = folder
        self.templates = templates
        self.seed = seed
        self.counts: collections.Counter[str] = collections.Counter()
        self.examples: list[str] = []  # descriptions of lost answers, wrong answers and failures
        self.memory_log: list[tuple[float, float]] = []  # (time in seconds, resident MiB)
        self.stop = threading.Event()
        self.rest_port = self.grpc_port = 0
        self._lock = threading.Lock()
        self._malformed_left = 0

    def count(self, what: str, example: object = None) -> None:
        """Counts an outcome of a request or another event.

        Args:
            what: name of the outcome, such as "lost".
            example: description of a bad outcome; `None` means a good outcome. The report has the
                first 20 descriptions.
        """
        with self._lock:
            self.counts[what] += 1
            if example is not None and len(self.examples) < 20:
                self.examples.append(f"{what}: {str(example)[:300]}")

    def check_answer(self, texts: list[str], answers: list[str]) -> None:
        """Checks an answer to a valid request, and counts the answer as right or wrong.

        Args:
            texts: texts of the request.
            answers: texts of the answer. A right answer has, for each text of the request, the tag
                of the model version ("even" or "odd"), a colon, and the text in upper case. All
                tags of an answer are equal.
        """
        tags = {text.partition(":")[0] for text in answers}
        is_right = (
            len(tags) == 1
            and [f"{tag}:{text.upper()}" for text in texts for tag in tags] == answers
        )
        if is_right and tags <= {"even", "odd"}:
            self.count(f"right, {tags.pop()} version")
        else:
            self.count("wrong", (texts, answers))

    # Valid requests.

    def ask_rest(self, rng: random.Random) -> None:
        """Sends requests over a persistent REST connection until the test ends."""
        connection = http.client.HTTPConnection(HOST, self.rest_port, timeout=_SECONDS)
        while not self.stop.is_set():
            texts = rng.choices(_TEXTS, k=rng.randint(1, 4))
            try:
                connection.request("POST", f"{_PATH}:predict", json.dumps({"inputs": texts}))
                response = connection.getresponse()
                body, status = response.read(), response.status
            except (OSError, http.client.HTTPException) as error:
                self.count("lost", f"REST {error!r}")
                connection.close()
                continue
            if status == 200:
                self.check_answer(texts, json.loads(body)["outputs"])
            else:
                self.count("wrong", f"REST {status} {body[:200]}")
        connection.close()

    def ask_grpc(self, rng: random.Random) -> None:
        """Sends requests over one gRPC channel until the test ends."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

        # By default, gRPC shares one connection among channels with the same address.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"{HOST}:{self.grpc_port}", options) as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
            while not self.stop.is_set():
                texts = rng.choices(_TEXTS, k=rng.randint(1, 4))
                request = predict_pb2.PredictRequest()
                request.model_spec.name = NAME
                request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
                try:
                    answer = predict(request, _SECONDS)
                except grpc.RpcError as error:
                    lost = error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
                    self.count(
                        "lost" if lost else "wrong", f"gRPC {error.code()} {error.details()}"
                    )
                    continue
                self.check_answer(
                    texts, [text.decode() for text in answer.outputs["said"].string_val]
                )

    # Malformed requests.

    def _next_malformed(self) -> bool:
        with self._lock:
            self._malformed_left -= 1
            return self._malformed_left >= 0

    def send_malformed(self, rng: random.Random, pause: float) -> None:
        """Sends malformed requests until all clients together have sent the planned number.

        The method also returns when the test ends. On average, half of the requests go over REST
        and half over gRPC.

        Args:
            rng: random number generator.
            pause: seconds between two requests.
        """
        import grpc

        with grpc.insecure_channel(f"{HOST}:{self.grpc_port}") as channel:
            while self._next_malformed():
                if rng.random() < 0.5:
                    self._malformed_http(rng)
                else:
                    self._malformed_grpc(rng, channel)
                self.stop.wait(pause)

    def _malformed_http(self, rng: random.Random) -> None:
        request = _malformed_request(rng)
        hangs_up = rng.random() < 0.2
        try:
            with socket.create_connection((HOST, self.rest_port), timeout=_SECONDS) as connection:
                connection.sendall(request)
                if hangs_up:  # closes the connection at once
                    self.count("malformed, hung up")
                    return
                connection.shutdown(socket.SHUT_WR)
                response = b""
                while chunk := connection.recv(65536):
                    response += chunk
        except (ConnectionResetError, BrokenPipeError):
            response = b""
        except OSError as error:
            self.count("failed", f"REST {error!r} to {request[:100]}")
            return
        status = response[9:12].decode("latin-1") or "closed"
        if status[0] in "c4" or status in ("501", "505"):
            self.count(f"malformed, REST {status}")
        else:
            self.count("failed", f"REST {response[:100]} to {request[:200]}")

    def _malformed_grpc(self, rng: random.Random, channel) -> None:
        import grpc

        service = "tensorflow.serving.PredictionService"
        method = rng.choice(["Predict", "GetModelMetadata"])
        message = _malformed_message(rng)
        try:
            channel.unary_unary(f"/{service}/{method}")(message, _SECONDS)
            self.count("failed", f"{method} answered {message[:100]}")
        except grpc.RpcError as error:
            code = error.code().name
            if code in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"):
                self.count(f"malformed, gRPC {code}")
            else:
                self.count("failed", f"gRPC {code} {error.details()} to {message[:100]}")

    # Model versions.

    def change_versions(self, rng: random.Random) -> None:
        """Adds complete, damaged and slowly copied versions until the test ends.

        After each new version, the method deletes random versions until only four are left.
        """
        version = 2
        while not self.stop.wait(rng.uniform(0.3, 1.5)):
            version += 1
            template, path = self.templates[version % 2], self.folder / str(version)
            variant = rng.choice(["whole", "whole", "slow copy", "cut", "noise", "no variables"])
            if variant == "slow copy":  # file by file, with saved_model.pb last
                path.mkdir()
                files = sorted(template.rglob("*"), key=lambda p: p.name == "saved_model.pb")
                for file in files:
                    (path / file.relative_to(template)).parent.mkdir(parents=True, exist_ok=True)
                    if file.is_file():
                        shutil.copy(file, path / file.relative_to(template))
                        self.stop.wait(0.1)
            else:
                staging = self.folder / f".tmp-{version}"
                shutil.copytree(template, staging)
                file = staging / "saved_model.pb"
                if variant == "cut":
                    file.write_bytes(file.read_bytes()[: rng.randint(0, 2000)])
                elif variant == "noise":
                    file.write_bytes(rng.randbytes(1000))
                elif variant == "no variables":
                    shutil.rmtree(staging / "variables")
                staging.rename(path)
            self.count(f"versions: {variant}")
            versions = sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit())
            for old in rng.sample(versions, max(0, len(versions) - 4)):
                shutil.rmtree(self.folder / str(old), ignore_errors=True)
                self.count("versions: deleted")

    # The course of the test.

    def watch(self, pid: int, started: float) -> None:
        """Records the resident memory of the server every second.

        Args:
            pid: process id of the server.
            started: start of the test, as returned by `time.monotonic`.
        """
        while not self.stop.wait(1.0):
            with contextlib.suppress(OSError, KeyError):  # raised after the process has ended
                resident = round(process_memory("VmRSS", pid) / 2**20, 1)
                self.memory_log.append((round(time.monotonic() - started, 1), resident))

    def run(self, pid: int, minutes: float, clients: int, malformed: int) -> float:
        """Runs the test, and returns its duration in seconds.

        The test ends after `minutes` if all malformed requests have been sent. Otherwise, the test
        continues until all malformed requests have been sent, but ends after 2 * `minutes` at the
        latest. If the server ends, the test ends at once.

        Args:
            pid: process id of the server.
            minutes: minimum duration in minutes.
            clients: number of clients that send valid requests.
            malformed: number of malformed requests.
        """
        started, self._malformed_left = time.monotonic(), malformed
        generators = (random.Random(f"{self.seed} {index}") for index in range(10**6))
        loops = [(self.ask_rest, self.ask_grpc)[n % 2] for n in range(clients)]
        malformed_clients = 4
        # Seconds, such that the pauses take at most half of the time.
        pause = min(0.05, 30 * minutes * malformed_clients / max(malformed, 1))
        threads = [
            *(threading.Thread(target=ask, args=(next(generators),)) for ask in loops),
            threading.Thread(target=self.change_versions, args=(next(generators),)),
            threading.Thread(target=self.watch, args=(pid, started)),
        ]
        malformed_threads = [
            threading.Thread(target=self.send_malformed, args=(next(generators), pause))
            for _ in range(malformed_clients)
        ]
        for thread in (*threads, *malformed_threads):
            thread.daemon = True
            thread.start()
        end, deadline = started + 60 * minutes, started + 120 * minutes
        while time.monotonic() < end or (
            any(thread.is_alive() for thread in malformed_threads) and time.monotonic() < deadline
        ):
            time.sleep(0.2)
            if not os.path.exists(f"/proc/{pid}"):
                self.count("lost", "the server ended")
                break
        with self._lock:
            self._malformed_left = 0
        self.stop.set()
        for thread in (*threads, *malformed_threads):
            thread.join(2 * _SECONDS)
            if thread.is_alive():
                self.count("lost", "a client did not end")
        return time.monotonic() - started


def _malformed_request(rng: random.Random) -> bytes:
    """Makes a malformed HTTP request, which a server must reject."""
    valid = b'{"instances": ["a"]}'
    body = rng.choice(
        [
            rng.randbytes(rng.randint(1, 200)), valid[: rng.randint(0, len(valid) - 1)], b"[]",
            b'{"instances": [1]}', b'{"instances": [["a"]]}', b'{"instances": []}',
            b'{"inputs": {"words": ["a"]}}', b'{"instances": ["a"], "signature_name": "no"}',
            b'{"instances": ' + b"[" * 5000, b'{"instances": ["a"], "inputs": ["a"]}',
            b'{"instances": [NaN]}', b'{"instances": [{"b64": "?"}]}', b'{"instances": null}',
        ]
    )  # fmt: skip
    length = b"Content-Length: %d" % len(body)
    line, head = rng.choice(
        [
            (b"POST %s:predict HTTP/1.1", length),
            (b"POST %s:predict HTTP/1.1", length),
            (b"POST %s:predict HTTP/1.1", length),
            (b"POST %s:predict HTTP/1.1", b"Transfer-Encoding: chunked"),
            (b"POST %s:predict HTTP/1.1", length + b"\r\nContent-Encoding: gzip"),
            (b"POST %s:predict HTTP/1.1", b"Content-Length: 99999999999999"),
            (b"POST %s:predict HTTP/1.1", b"A: b"),
            (b"POST %s/versions/999999:predict HTTP/1.1", length),
            (b"POST %s/labels/none:predict HTTP/1.1", length),
            (b"POST %sx:predict HTTP/1.1", length),
            (b"DELETE %s HTTP/1.1", length),
            (b"GET %s/versions/99999999999999999999 HTTP/1.1", b"A: b"),
            (b"POST %s:predict HTTP/3", length),
            (b"%s", length),
        ]
    )
    if b"chunked" in head:
        body = b"zz\r\n" + body
    return line % _PATH.encode() + b"\r\nHost: x\r\n" + head + b"\r\n\r\n" + body


def _malformed_message(rng: random.Random) -> bytes:
    """Makes a malformed gRPC message, which a server must reject."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = NAME
    proto = tf.make_tensor_proto([b"a"])
    variant = rng.randrange(10)
    if variant == 0:
        return b"\xff" + rng.randbytes(rng.randint(1, 100))
    if variant == 1:
        return b""
    if variant == 2:
        request.model_spec.name = "other"
    elif variant == 3:
        request.model_spec.version.value = rng.choice([-1, 999_999, 2**63 - 1])
    elif variant == 4:
        request.model_spec.version_label = "none"
    elif variant == 5:
        proto = tf.make_tensor_proto(rng.choice([1, [1.5], [[True]], [[b"a"]]]))
    elif variant == 6:
        proto.tensor_shape.dim[0].size = rng.choice([10**12, -1, -5, 2**62])
    elif variant == 7:
        proto = tensor_pb2.TensorProto(dtype=rng.randint(1, 22), tensor_content=b"abc")
        proto.tensor_shape.dim.add().size = 7
    elif variant == 8:
        request.model_spec.signature_name = "no\x00ne"
    elif variant == 9:
        request.inputs["more"].CopyFrom(proto)
    if variant in (2, 3, 4, 8) or rng.random() < 0.9:
        request.inputs["text"].CopyFrom(proto)
    elif variant != 9:
        request.inputs["words"].CopyFrom(proto)
    return request.SerializeToString()


def _summary(soak: Soak, seconds: float, log: str) -> dict:
    counts = dict(sorted(soak.counts.items()))
    memory = [value for _, value in soak.memory_log]
    quarter = max(1, len(memory) // 4)
    quarters = memory[quarter : 2 * quarter], memory[-quarter:]
    return {
        "seconds": round(seconds, 1),
        "right": sum(n for name, n in counts.items() if name.startswith("right")),
        "lost": counts.get("lost", 0),
        "wrong": counts.get("wrong", 0),
        "malformed": sum(n for name, n in counts.items() if name.startswith("malformed")),
        "malformed failed": counts.get("failed", 0),
        "tracebacks": log.count("Traceback"),
        "switches": log.count(" serves after "),
        "refused versions": log.count(" cannot be loaded: "),
        "MiB, second and last quarter's medians": [*map(statistics.median_high, quarters)],
        "MiB, greatest": max(memory),
        "counts": counts,
        "examples": soak.examples,
        "memory": soak.memory_log[:: max(1, len(soak.memory_log) // 120)],
    }


def _page(options: argparse.Namespace, summary: dict, command: str) -> str:
    rows = "".join(f"| {name} | {n:,} |\n" for name, n in summary["counts"].items())
    second, last = summary["MiB, second and last quarter's medians"]
    return f"""# Soak test of the local server

`{command}` on {summary["machine"]}, commit `{summary["commit"]}`.

{options.clients} clients sent requests for {summary["seconds"]:.0f} s. They received
{summary["right"]:,} right answers; **{summary["lost"]} answers were lost and
{summary["wrong"]} were wrong**. Meanwhile, the server loaded {summary["switches"]} versions and
rejected a damaged version {summary["refused versions"]} times. The server rejected
{summary["malformed"]:,} malformed requests, and {summary["malformed failed"]} malformed requests
had another outcome. The server's log has {summary["tracebacks"]} tracebacks.

The median resident memory of the server was {second:.0f} MiB in the second quarter of the test and
{last:.0f} MiB in the last quarter. The maximum was {summary["MiB, greatest"]:.0f} MiB.

| outcome | count |
| --- | --- |
{rows}"""


def run(options: argparse.Namespace) -> int:
    """Runs the command `soak`, and returns the exit status."""
    command = " ".join(["python -m experiments.lab.benchmarks.soak", *options.arguments])
    if not os.path.exists("/proc/self/status"):
        raise UserError(
            "this system has no /proc/self/status, but the benchmark reads the server's memory "
            "from /proc: use Linux"
        )
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        root = pathlib.Path(scratch)
        templates = [root / tag for tag in ("even", "odd")]
        for template in templates:
            _write_model(template, template.name)
        folder = root / NAME
        for version in (1, 2):
            shutil.copytree(templates[version % 2], folder / str(version))
        log = root / "log.txt"
        flags = ["--rest-port", "0", "--grpc-port", "0", "--host", HOST, "--poll-seconds", "0.2"]
        with log.open("w") as errors:
            server = subprocess.Popen(
                [sys.executable, "-m", "macaron_tf", "serve", str(folder), *flags],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            ports = re.search(
                rf"http://{HOST}:(\d+) \(gRPC {HOST}:(\d+)\)", server.stdout.readline()
            )
            if not ports:
                raise UserError(
                    "the server did not start: correct the error at the end of its log, "
                    f"{log.read_text()[-300:]}"
                )
            soak = Soak(folder, templates, options.seed)
            soak.rest_port, soak.grpc_port = map(int, ports.groups())
            seconds = soak.run(server.pid, options.minutes, options.clients, options.malformed)
            server.send_signal(signal.SIGTERM)
            if server.wait(60):
                soak.count("lost", f"the server ended with status {server.returncode}")
        finally:
            server.kill()
            server.wait()
        text = log.read_text()
    summary = _summary(soak, seconds, text)
    summary |= {"command": command, "commit": commit() or "unknown", "seed": options.seed}
    summary["machine"] = f"{os.cpu_count()} CPUs"
    page = _page(options, summary, command)
    if options.out is not None:
        save(options.out, summary, page)
    print(page)
    print("\n".join(soak.examples))
    if summary["tracebacks"]:
        print(text[text.index("Traceback") - 200 :][:3000])
    failures = ("lost", "wrong", "malformed failed", "tracebacks")
    return 1 if any(summary[name] for name in failures) or not summary["right"] else 0


main = single_program(
    "python -m experiments.lab.benchmarks.soak",
    __doc__,
    "experiments.lab.benchmarks.soak:run",
    count(
        "--minutes M",
        "minimum duration of the test in minutes; the test takes up to twice as long if it has not "
        "sent all malformed requests (default: %(default)s)",
        2.0,
        0.01,
        1500.0,
    ),
    count(
        "--clients N",
        "number of clients, half of them over REST and half over gRPC (default: %(default)s)",
        64,
        2,
        513,
    ),
    count("--malformed N", "number of malformed requests (default: %(default)s)", 1000, 0, 10**7),
    count(
        "--seed N", "random seed of the texts, requests and versions (default: %(default)s)", 1, 0
    ),
    local_path_argument(
        "--out DIR", "output folder for the report (default: only print the report)"
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
