"""A client of a served model, over REST (standard library only) or gRPC.

    python -m export.client --name NAME "A dog is running."
    python -m export.client --name NAME < source.txt > answers.txt

One line in, one line out, in order, whatever the model answers; of a model that takes several texts
(a pair; a question and its context; a context, its question and choices) tabs stand between them.
It works with `export.serve` and with TensorFlow Serving, and reads from the server what the model
takes:

    a translator     the translation
    a classifier     the label, and CLASS=PROBABILITY of each class, tabs between
    a regression     the score
    a tagger         a line a word with its tag, and an empty line
    a reader         the answer, its probability, and where it begins and ends
    a generator      the completion, its line ends as \\n; --input max_tokens=20 and others
    sentences        the vector's numbers
    all others       a JSON object of the outputs

In Python: `RestClient(url, name).answers(lines)`, and `translate(lines)` of a translator.
"""

import abc
import argparse
import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import re
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from macaron_tf.cli.arguments import Parser, argument, count
from macaron_tf.cli.program import decoded, exit_on_user_error
from macaron_tf.errors import UserError, check_whole, parse_json
from macaron_tf.io.serving import MAX_VERSION, as_json

_BUSY = (429, 503)
_SIGNATURE = "serving_default"
# Columns of a line, in order. A choice has context, question, then choice1, choice2 and so on.
_COLUMNS = ("text", "first", "second", "question", "context")
_CHOICE_COLUMNS = ("context", "question")
_BITS = {"DT_INT32": 32, "DT_INT64": 64}
_GREATEST = {"DT_FLOAT": 3.4028234e38, "DT_DOUBLE": 1.7976931348623157e308}
# Statuses that may be the fault of one line.
_LINE_REFUSED = (400, 413, "INVALID_ARGUMENT")
_CONNECT_SECONDS = 10.0  # in which a gRPC server that starts is asked again
# Inputs of a generator, as `experiments.generate` has them.
_GENERATION = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": 128}


class ClientError(Exception):
    """The server refused a request or gave no answer; `status` is its HTTP status or gRPC code."""

    def __init__(self, message: str, status: int | str | None = None):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation and the model's score for it (higher is better)."""

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a served model: TensorFlow's names of their dtypes, by name."""

    inputs: dict[str, str]
    outputs: dict[str, str]

    @property
    def texts(self) -> list[str]:
        """The inputs that are text, in the order of a line's columns."""
        texts = sorted(name for name, dtype in self.inputs.items() if dtype == "DT_STRING")
        choices = [name for name in texts if re.fullmatch("choice[0-9]+", name)]
        choices.sort(key=lambda name: int(name.removeprefix("choice")))
        known = (*(_CHOICE_COLUMNS if choices else _COLUMNS), *choices)
        first = [name for name in known if name in texts]
        return first + [name for name in texts if name not in known]

    def columns(
        self, lines: Sequence[str], given: Mapping[str, float], first: int
    ) -> dict[str, list]:
        """Lines as the inputs; raises UserError where they do not fit.

        Args:
            given: inputs that are numbers, the same for each line.
            first: the number of the first line, for errors.
        """
        texts = self.texts
        numbers = {name: given.get(name, _GENERATION.get(name)) for name in self.inputs}
        numbers = {name: value for name, value in numbers.items() if name not in texts}
        if missing := [name for name, value in numbers.items() if value is None]:
            raise UserError(
                f"the model takes the number {missing[0]!r}: give --input {missing[0]}=VALUE"
            )
        if unknown := given.keys() - numbers:
            known = ", ".join(numbers) or "none"
            raise UserError(f"the model takes no number {min(unknown)!r}: it takes {known}")
        numbers = {name: _number(name, value, self.inputs[name]) for name, value in numbers.items()}
        rows = [line.split("\t") if len(texts) != 1 else [line] for line in lines]
        for number, row in enumerate(rows, first):
            if len(row) != len(texts):
                raise UserError(
                    f"line {number}: {len(row)} texts, and the model takes {len(texts)} "
                    f"({', '.join(texts)}): separate them by one tab each"
                )
        columns = {name: [row[i] for row in rows] for i, name in enumerate(texts)}
        return columns | {name: [value] * len(lines) for name, value in numbers.items()}


def _number(name: str, value: Any, dtype: str) -> Any:
    """A value as a Python number; refuses one that its dtype cannot hold: gRPC would round it."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if bits := _BITS.get(dtype):
        if real and isinstance(value, Integral) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            return int(value)
        raise UserError(f"{name}={value!r}: the model wants int{bits}")
    if most := _GREATEST.get(dtype):
        if real and abs(value) <= most:
            return float(value)
        raise UserError(f"{name}={value!r}: the model wants a finite number")
    return value


@dataclasses.dataclass(eq=False)
class Client(abc.ABC):
    """Base of the REST and gRPC clients: sends lines in batches; a subclass runs one request.

    Where the server refuses, or cannot be reached, all methods raise a ClientError.

    Attributes:
        version: None = the newest.
        timeout: seconds to wait for an answer.
        batch_size: lines sent in one request.
    """

    address: str
    name: str
    version: int | None = None
    timeout: float = 60.0
    batch_size: int = 32

    @functools.cached_property
    def signature(self) -> Signature:
        """The model's signature `serving_default`, as the server describes it."""
        with self._as_documented():
            found = self._metadata()["signature_def"]
            if _SIGNATURE not in found:
                raise ClientError(f"the model has no signature {_SIGNATURE}")
            inputs, outputs = (
                {name: about["dtype"] for name, about in found[_SIGNATURE].get(part, {}).items()}
                for part in ("inputs", "outputs")
            )
            return Signature(inputs, outputs)

    @contextlib.contextmanager
    def _as_documented(self) -> Iterator[None]:
        """Turns a field that is missing in the answer into a ClientError."""
        try:
            yield
        except (KeyError, TypeError, AttributeError):
            raise ClientError(
                f"{self.address} does not answer as TensorFlow Serving does: is it another server?"
            ) from None

    def answers(
        self, lines: Sequence[str], first: int = 1, **numbers: float
    ) -> list[dict[str, Any]]:
        """The outputs by name for each line, whatever the model; texts of a line at tabs.

        Args:
            first: the number of the first line, for errors.
            numbers: inputs of the model that are numbers, such as `max_tokens`.

        Raises:
            UserError: a line does not fit the model.
        """
        columns = self.signature.columns(lines, numbers, first)
        [only, *_] = self.signature.outputs
        found = []
        for part in self._run_in_batches(_SIGNATURE, first, **columns):
            values = {name or only: value for name, value in part.items()}
            rows = min(len(lines) - len(found), self.batch_size)
            for name, value in values.items():
                if not isinstance(value, list) or len(value) != rows:
                    raise ClientError(f"the model's output {name!r} has no row for each line")
            found += [{name: value[i] for name, value in values.items()} for i in range(rows)]
        return found

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order."""
        return [candidates[0].text for candidates in self.n_best(lines)]

    def n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """All translations of each line, best first."""
        found = []
        for part in self._run_in_batches(_SIGNATURE, text=lines):
            if "translations" not in part:
                raise ClientError(f"the model {self.name!r} is no translator")
            rows = zip(part["translations"], part["scores"], strict=True)
            found += [list(map(Candidate, *row)) for row in rows]
        return found

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log-probabilities (natural logarithm, summed over tokens) of given translations.

        Raises:
            ValueError: unequal numbers of lines.
        """
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
        outputs = self._run_in_batches("score", source=sources, target=targets)
        return [score for part in outputs for score in part.get("log_probs") or part[""]]

    def _run_in_batches(
        self, signature: str, first: int = 1, /, **columns: Sequence
    ) -> Iterator[dict]:
        for column in columns.values():
            check_whole((value for value in column if isinstance(value, str)), first)
        for start in range(0, len(next(iter(columns.values()))), self.batch_size):
            end = start + self.batch_size
            yield self._run(signature, {name: list(c[start:end]) for name, c in columns.items()})

    @abc.abstractmethod
    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        """Runs one request of a signature; outputs by name, "" where one alone has none."""

    @abc.abstractmethod
    def _metadata(self) -> dict[str, Any]:
        """The `SignatureDefMap` of the model, as JSON has it."""


@dataclasses.dataclass(eq=False)
class RestClient(Client):
    """Asks over REST, at an address such as http://127.0.0.1:8501.

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
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        try:
            parts = urllib.parse.urlsplit(url)
            host = parts.hostname or ""
            host.encode("idna")  # as the connection will
            if not host or parts.scheme not in kinds:
                raise ValueError(url)
            kind = kinds[parts.scheme]
            self._connection = kind(host, parts.port or kind.default_port, timeout=self.timeout)
        except (ValueError, http.client.InvalidURL):
            raise UserError(
                f"{self.address!r} is no server's address; write http://HOST:PORT"
            ) from None
        self._path = f"/v1/models/{urllib.parse.quote(self.name, safe='')}"
        if self.version is not None:
            self._path += f"/versions/{self.version}"

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Waits until the model is available; a ClientError where it is not in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                states = self._request("GET", self._path, None, retries=0)["model_version_status"]
                if any(state["state"] == "AVAILABLE" for state in states):
                    return
                message = "the model is still loading"
            except ClientError as error:
                message = str(error)
            if time.monotonic() > deadline:
                raise ClientError(f"not ready after {seconds:g} s: {message}")
            time.sleep(0.1)

    def close(self) -> None:
        """Closes the connection; the next request opens it again."""
        self._connection.close()

    def _metadata(self) -> dict[str, Any]:
        path = f"{self._path}/metadata"
        return self._request("GET", path, None, self.retries)["metadata"]["signature_def"]

    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode("utf-8")
        found = self._request("POST", f"{self._path}:predict", body, self.retries)
        with self._as_documented():
            answer = found["outputs"]
        # A signature with one output answers with its bare value.
        return answer if isinstance(answer, dict) else {"": answer}

    def _request(self, method: str, path: str, body: bytes | None, retries: int) -> dict:
        headers = {"Content-Type": "application/json"} if body else {}
        for attempt in itertools.count():
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                return _parse(response.read(), response.status)
            except TimeoutError:
                self.close()
                raise ClientError(f"no answer from {self.address} in time") from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
                failure = ClientError(f"no answer from {self.address}: {reason}")
            except ClientError as error:
                if error.status not in _BUSY:
                    raise
                failure = error
            if attempt >= retries:
                raise failure
            time.sleep(self.backoff * 2.0**attempt)


@dataclasses.dataclass(eq=False)
class GrpcClient(Client):
    """Asks over gRPC, at an address such as 127.0.0.1:8500. Thread-safe.

    It needs grpcio, TensorFlow and tensorflow-serving-api, and waits seconds for a server to start.
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

    def _ask(self, method: Callable, request):
        """The answer of a method of the server's to a request about the model."""
        import grpc

        request.model_spec.name = self.name
        if self.version is not None:
            request.model_spec.version.value = self.version
        give_up = time.monotonic() + min(self.timeout, _CONNECT_SECONDS)
        while True:
            try:
                return method(request, self.timeout)
            except grpc.RpcError as error:
                code, message = error.code(), error.details()
            if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"no answer from {self.address} in {self.timeout:g} s"
            elif code == grpc.StatusCode.UNAVAILABLE:
                if time.monotonic() < give_up:
                    time.sleep(0.2)
                    continue
                message = f"no answer from {self.address}: {message}"
            raise ClientError(message, code.name)

    def _metadata(self) -> dict[str, Any]:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        found = get_model_metadata_pb2.SignatureDefMap()
        self._ask(self._stub.GetModelMetadata, request).metadata["signature_def"].Unpack(found)
        return json_format.MessageToDict(found, preserving_proto_field_name=True)

    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        import tensorflow as tf
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        for name, values in inputs.items():
            numeric = not all(isinstance(value, str) for value in values)
            dtype = self.signature.inputs[name] if numeric else "DT_STRING"
            number = tf.dtypes.as_dtype(types_pb2.DataType.Value(dtype))
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype=number))
        response = self._ask(self._stub.Predict, request)
        return {name: as_json(name, tf.make_ndarray(p)) for name, p in response.outputs.items()}


def text_of(answer: Mapping[str, Any]) -> str:
    """An answer of `Client.answers` as text, by the names of its outputs; see the module's."""
    match answer:
        case {"translations": [text, *_]}:
            return text
        case {"label": label, "probabilities": values, **others}:
            names = others.get("classes") or [*map(str, range(len(values)))]
            pairs = zip(names, values, strict=True)
            return "\t".join([label, *(f"{name}={value:.4f}" for name, value in pairs)])
        case {"words": words, "tags": tags}:
            pairs = zip(words, tags, strict=True)
            return "".join(f"{word}\t{tag}\n" for word, tag in pairs if word)
        case {"answer": text, "probability": probability, "start": start, "end": end}:
            return f"{' '.join(text.split())}\t{probability:.4f}\t{start}\t{end}"
        case {"completion": text}:
            return text.replace("\n", "\\n")
        case {"score": score}:
            return f"{score:.4f}"
        case {"vector": numbers}:
            return " ".join(f"{number:.7g}" for number in numbers)
    return json.dumps(answer, ensure_ascii=False)


def _parse(raw: bytes, status: int) -> dict:
    """The answer of status 200; others are a ClientError."""
    try:
        answer = parse_json(raw)
    except ValueError:
        said = f"the answer is no JSON object (HTTP {status}): {raw[:80]!r}"
        raise ClientError(said, status) from None
    if status != 200:
        raise ClientError(str(answer.get("error", f"HTTP {status}")), status)
    return answer


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings."""
    parser = Parser(prog="python -m export.client", description=__doc__)
    add = parser.add_argument
    add("text", nargs="*", help="lines to answer; none: standard input, a line each")
    add("--url", default="http://127.0.0.1:8501", help="REST address (%(default)s)")
    add("--grpc", metavar="HOST:PORT", help="use gRPC at this address instead of REST")
    add("--name", default="model", help="the model's name (%(default)s, as TensorFlow Serving's)")
    text = "the model's version (default: the newest)"
    count("--version N", text, least=0, below=MAX_VERSION + 1)(parser)
    add("--n-best", action="store_true", help="all translations: number ||| text ||| score")
    text = "an input of the model that is a number, such as max_tokens=20 of a generator"
    argument("--input NAME=NUMBER", text, action="append", default=[])(parser)
    count("--batch-size N", "lines in one request (%(default)s)", 32)(parser)
    count("--timeout SECONDS", "seconds to wait (%(default)s)", 60.0, 0.001, 1e6)(parser)
    parsed = parser.parse_args(arguments)
    if parsed.grpc == "":
        parser.error("--grpc is empty: write HOST:PORT")
    pairs = [given.partition("=")[::2] for given in parsed.input]
    try:
        parsed.input = {name: parse_json(number, object) for name, number in pairs}
    except ValueError:
        parser.error(f"--input {' '.join(parsed.input)}: write NAME=NUMBER")
    return parsed


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs the command."""
    parsed = parse_arguments(arguments)
    kind, address = (GrpcClient, parsed.grpc) if parsed.grpc else (RestClient, parsed.url)
    client = kind(address, parsed.name, parsed.version, parsed.timeout, parsed.batch_size)

    def show(lines: list[str], first: int) -> None:
        if parsed.n_best:
            for number, candidates in enumerate(client.n_best(lines), first - 1):
                for each in candidates:
                    print(f"{number} ||| {each.text} ||| {each.score:.4f}")
        else:
            for answer in client.answers(lines, first, **parsed.input):
                print(text_of(answer))
        sys.stdout.flush()

    def answer(lines: list[str], first: int) -> None:
        try:
            show(lines, first)
        except ClientError as error:
            if error.status not in _LINE_REFUSED:
                raise
            if len(lines) == 1:
                raise ClientError(f"line {first}: {error}", error.status) from None
            for number, line in enumerate(lines, first):  # those before the refused are answered
                answer([line], number)

    lines, number = iter(parsed.text or decoded(sys.stdin.buffer)), 1
    try:
        while chunk := list(itertools.islice(lines, parsed.batch_size)):
            answer(chunk, number)
            number += len(chunk)
    except ClientError as error:
        named = f" (the model is named by --name, now {parsed.name!r})"
        absent = error.status in (404, "NOT_FOUND")
        raise UserError(f"{error}{named if absent else ''}") from None
    finally:
        client.close()


if __name__ == "__main__":
    raise SystemExit(main())
