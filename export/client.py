"""A client of a served translation model, over REST (standard library only) or gRPC.

    python -m export.client --name NAME "A dog is running."
    python -m export.client --name NAME < source.txt > translation.txt

One line in, one line out, in order. It works with `export.serve` and with TensorFlow Serving.
In Python: `TranslationClient(url, name).translate(lines)`.
"""

import abc
import argparse
import dataclasses
import http.client
import itertools
import json
import sys
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence

from macaron_tf.errors import UserError, exit_on_user_error

_BUSY = (429, 503)


class TranslationError(Exception):
    """The server refused a request or gave no answer; `status` is its HTTP status or gRPC code."""

    def __init__(self, message: str, status: int | str | None = None):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation and the model's score for it (higher is better)."""

    text: str
    score: float


@dataclasses.dataclass(eq=False)
class Client(abc.ABC):
    """Base of the REST and gRPC clients: sends lines in batches; a subclass runs one request.

    Attributes:
        address: the server's.
        name: the model's.
        version: None = the newest.
        timeout: seconds to wait for an answer.
        batch_size: lines sent in one request.
    """

    address: str
    name: str
    version: int | None = None
    timeout: float = 60.0
    batch_size: int = 32

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order; raises as `n_best`."""
        return [candidates[0].text for candidates in self.n_best(lines)]

    def n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """All translations of each line, best first.

        Raises:
            TranslationError: the server refused, or could not be reached.
        """
        outputs = self._run_in_batches("serving_default", text=lines)
        return [
            list(map(Candidate, texts, scores))
            for part in outputs
            for texts, scores in zip(part["translations"], part["scores"], strict=True)
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log-probabilities (natural logarithm, summed over tokens) of given translations.

        Raises:
            ValueError: unequal numbers of lines.
            TranslationError: the server refused, or could not be reached.
        """
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
        outputs = self._run_in_batches("score", source=sources, target=targets)
        return [score for part in outputs for score in part["log_probs"]]

    def _run_in_batches(self, signature: str, **columns: Sequence[str]) -> Iterator[dict]:
        for start in range(0, len(next(iter(columns.values()))), self.batch_size):
            end = start + self.batch_size
            yield self._run(signature, {name: list(c[start:end]) for name, c in columns.items()})

    @abc.abstractmethod
    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        """Runs one request of a signature; outputs by name."""


@dataclasses.dataclass(eq=False)
class TranslationClient(Client):
    """Translates over REST, at an address such as http://127.0.0.1:8501.

    Not thread-safe: make one per thread.

    Attributes:
        retries: times a request is repeated when the server cannot be reached or is busy (503,
            429). A prediction changes nothing on the server, so repeating it is safe.
        backoff: seconds before the first repetition; doubled each time.
    """

    retries: int = 5
    backoff: float = 0.2

    def __post_init__(self):
        url = self.address if "//" in self.address else f"http://{self.address}"
        parts = urllib.parse.urlsplit(url)
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise UserError(f"{self.address!r} is no server's address; write http://HOST:PORT")
        self._connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=self.timeout)
        self._path = f"/v1/models/{urllib.parse.quote(self.name, safe='')}"
        if self.version is not None:
            self._path += f"/versions/{self.version}"

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Waits until the model is available; a TranslationError where it is not in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                states = self._request("GET", self._path, None, retries=0)["model_version_status"]
                if any(state["state"] == "AVAILABLE" for state in states):
                    return
                message = "the model is still loading"
            except TranslationError as error:
                message = str(error)
            if time.monotonic() > deadline:
                raise TranslationError(f"not ready after {seconds:g} s: {message}")
            time.sleep(0.1)

    def close(self) -> None:
        """Closes the connection; the next request opens it again."""
        self._connection.close()

    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode("utf-8")
        answer = self._request("POST", f"{self._path}:predict", body, self.retries)["outputs"]
        # A signature with one output answers with its bare value.
        return answer if isinstance(answer, dict) else {"log_probs": answer}

    def _request(self, method: str, path: str, body: bytes | None, retries: int) -> dict:
        headers = {"Content-Type": "application/json"} if body else {}
        for attempt in itertools.count():
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                raw = response.read()
            except TimeoutError:
                self.close()
                raise TranslationError(f"no answer from {self.address} in time") from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
                failure = TranslationError(f"no answer from {self.address}: {reason}")
            else:
                answer = _parse(raw, response.status)
                if response.status == 200:
                    return answer
                said = str(answer.get("error", f"HTTP {response.status}"))
                failure = TranslationError(said, response.status)
                if response.status not in _BUSY:
                    raise failure
            if attempt >= retries:
                raise failure
            time.sleep(self.backoff * 2.0**attempt)


@dataclasses.dataclass(eq=False)
class GrpcTranslationClient(Client):
    """Translates over gRPC, at an address such as 127.0.0.1:8500. Thread-safe.

    It needs grpcio, TensorFlow and tensorflow-serving-api, and waits for a server that starts.
    """

    def __post_init__(self):
        # Imported late: they bring TensorFlow, which takes seconds and REST does not need.
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        # -1: answers of any length; gRPC's own limit is 4 MiB.
        self._channel = grpc.insecure_channel(
            self.address, options=(("grpc.max_receive_message_length", -1),)
        )
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.name
        request.model_spec.signature_name = signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        for name, lines in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(lines, dtype="string"))
        try:
            response = self._stub.Predict(request, self.timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise TranslationError(error.details(), error.code().name) from None
        outputs = {}
        for name, proto in response.outputs.items():
            array = tf.make_ndarray(proto)
            if proto.dtype == tf.string.as_datatype_enum:
                text = [value.decode("utf-8", "replace") for value in array.reshape(-1)]
                array = array.astype(object)
                array.flat = text
            outputs[name] = array.tolist()
        return outputs


def _parse(raw: bytes, status: int) -> dict:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = f"the answer is no JSON object (HTTP {status}): {raw[:80]!r}"
        raise TranslationError(said, status)
    return answer


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Lines cut at newlines only: Python's text readers would also cut at a lone return."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            print(f"warning: line {number} is not UTF-8: bad bytes replaced", file=sys.stderr)
        yield text.rstrip("\r\n")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings."""
    parser = argparse.ArgumentParser(
        prog="python -m export.client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("text", nargs="*", help="lines to translate; none: standard input, a line each")
    add("--url", default="http://127.0.0.1:8501", help="REST address (%(default)s)")
    add("--grpc", metavar="HOST:PORT", help="use gRPC at this address instead of REST")
    add("--name", default="model", help="the model's name (%(default)s, as TensorFlow Serving's)")
    add("--version", type=int, help="the model's version (default: the newest)")
    add("--n-best", action="store_true", help="all translations: number ||| text ||| score")
    add("--batch-size", type=int, default=32, help="lines in one request (%(default)s)")
    add("--timeout", type=float, default=60.0, help="seconds to wait (%(default)s)")
    parsed = parser.parse_args(arguments)
    if parsed.batch_size < 1:
        parser.error("--batch-size must be at least 1")
    return parsed


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs the command."""
    parsed = parse_arguments(arguments)
    client = (GrpcTranslationClient if parsed.grpc else TranslationClient)(
        parsed.grpc or parsed.url,
        parsed.name,
        parsed.version,
        parsed.timeout,
        parsed.batch_size,
    )
    lines, number = iter(parsed.text or _decoded(sys.stdin.buffer)), 0
    try:
        while chunk := list(itertools.islice(lines, parsed.batch_size)):
            for candidates in client.n_best(chunk):
                if parsed.n_best:
                    for each in candidates:
                        print(f"{number} ||| {each.text} ||| {each.score:.4f}")
                else:
                    print(candidates[0].text)
                number += 1
            sys.stdout.flush()
    except TranslationError as error:
        raise UserError(f"{error} (the model is named by --name, now {parsed.name!r})") from None
    finally:
        client.close()


if __name__ == "__main__":
    raise SystemExit(main())
