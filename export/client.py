"""A client of a served model, over REST (standard library only) or gRPC, or without a server.

    python -m export.client --name NAME "A dog is running."
    python -m export.client --name NAME < source.txt > answers.txt
    python -m export.client --local served/NAME "A dog is running."

One line in, one line out, in order, whatever the model answers; of a model that takes several texts
(a pair; a question and its context; a context, its question and choices) tabs stand between them.
It works with `export.serve`, with TensorFlow Serving, and with an exported model's folder, from
which it reads what the model takes:

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

import argparse
import dataclasses
import http.client
import itertools
import json
import logging
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from export.base_client import Client, ClientError
from macaron_tf.cli.arguments import Parser, argument, count, local_place
from macaron_tf.cli.program import decoded, exit_on_user_error
from macaron_tf.errors import UserError, parse_json
from macaron_tf.io.serving import MAX_VERSION, as_json

_BUSY = (429, 503)
# Statuses that may be the fault of one line.
_LINE_REFUSED = (400, 413, "INVALID_ARGUMENT")
_CONNECT_SECONDS = 10.0  # in which a gRPC server that starts is asked again


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
    local_place("--local DIR", "answer by the model exported to DIR, without a server")(parser)
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
    if parsed.grpc and parsed.local is not None:
        parser.error("--grpc and --local: give one, a server's address or an export's folder")
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
    if parsed.local is not None:
        # Imported late: TensorFlow takes seconds. It advises against the session of its own server.
        from export.local_client import LocalClient

        logging.getLogger("tensorflow").setLevel(logging.ERROR)

        kind, address = LocalClient, parsed.local
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
