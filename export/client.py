"""Sends lines of text to a served model over REST or gRPC, or to an exported model directly.

    python -m export.client --name NAME "A dog is running."
    python -m export.client --name NAME < source.txt > answers.txt
    python -m export.client --local served/NAME "A dog is running."

Each line of input gives one prediction, in order. If a model reads several texts (a pair, a
question with its context, or a context with a question and choices), separate the texts by tabs.
The client works with `export.serve`, with TensorFlow Serving, and with the folder of an exported
model. REST requests do not need TensorFlow. The printed answer depends on the type of the model:

    translation              the translation
    classification           the label, and CLASS=PROBABILITY of each class, separated by tabs
    regression               the score
    tagging                  one line for each word with its tag, then an empty line
    question answering       the answer, its probability, and its start and end in characters
    text generation          the completion, with line breaks as \\n
    sentence embedding       the numbers of the vector, separated by spaces
    other                    a JSON object of the outputs

A text generator also has numeric inputs, which --input sets, such as --input max_tokens=20. In
Python, use `RestClient(url, name).answers(lines)`, or `translate(lines)` for a translator.
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
from macaron_tf.cli.arguments import Parser, argument, count, local_path_argument
from macaron_tf.cli.program import decoded, exit_on_user_error
from macaron_tf.errors import UserError, parse_json
from macaron_tf.io.serving import MAX_VERSION, as_json

_BUSY = (429, 503)
# Statuses with which a server rejects a request because of one of its lines.
_LINE_REJECTED = (400, 413, "INVALID_ARGUMENT")
_CONNECT_SECONDS = 10.0  # maximum time to wait while a gRPC server starts


@dataclasses.dataclass(eq=False)
class RestClient(Client):
    """Client for the REST API of a server, at an address such as http://127.0.0.1:8501.

    A path in the address, such as /models in http://proxy/models, is the prefix of all requests.
    The client is not thread-safe, so each thread needs its own client.

    Attributes:
        retries: maximum number of times to repeat a request if the server cannot be reached or is
            busy (HTTP status 503 or 429). A request that exceeds `timeout` is not repeated.
            Repeating is safe, because a prediction does not change the state of the server.
        backoff: seconds before the first repetition. The wait doubles with every repetition.

    Raises:
        UserError: `address` is not an HTTP address.
    """

    retries: int = 5
    backoff: float = 0.2

    def __post_init__(self):
        url = self.address if "//" in self.address else f"http://{self.address}"
        connection_classes = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        try:
            parts = urllib.parse.urlsplit(url)
            host = parts.hostname or ""
            host.encode("idna")  # raises an error that the connection would raise later
            ignored = parts.query or parts.fragment or parts.username is not None
            if not host or parts.scheme not in connection_classes or ignored:
                raise ValueError(url)
            prefix = urllib.parse.quote(parts.path.rstrip("/"), safe="/%")
            cls = connection_classes[parts.scheme]
            self._connection = cls(host, parts.port or cls.default_port, timeout=self.timeout)
        except (ValueError, http.client.InvalidURL):
            raise UserError(
                f"{self.address!r} is not the HTTP address of a server: write http://HOST:PORT"
            ) from None
        self._path = f"{prefix}/v1/models/{urllib.parse.quote(self.name, safe='')}"
        if self.version is not None:
            self._path += f"/versions/{self.version}"

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        """Waits until `version` of the model is available; without `version`, until any version is.

        Raises:
            ClientError: the version is not available after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                response = self._request("GET", self._path, None, retries=0)
                with self._as_documented():
                    states = [state["state"] for state in response["model_version_status"]]
                if "AVAILABLE" in states:
                    return
                message = "the model is still loading"
            except ClientError as error:
                message = str(error)
            if time.monotonic() > deadline:
                raise ClientError(
                    f"the model is not ready after {seconds:g} s ({message}): wait longer, check "
                    "the address and the model's name, or read the server's log"
                )
            time.sleep(0.1)

    def close(self) -> None:
        """Closes the connection. The next request opens a new connection."""
        self._connection.close()

    def _metadata(self) -> dict[str, Any]:
        path = f"{self._path}/metadata"
        return self._request("GET", path, None, self.retries)["metadata"]["signature_def"]

    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode("utf-8")
        response = self._request("POST", f"{self._path}:predict", body, self.retries)
        with self._as_documented():
            outputs = response["outputs"]
        # If a signature has a single output, the response does not contain its name.
        return outputs if isinstance(outputs, dict) else {"": outputs}

    def _request(self, method: str, path: str, body: bytes | None, retries: int) -> dict:
        headers = {"Content-Type": "application/json"} if body else {}
        for attempt in itertools.count():
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                return _parse(response.read(), response.status)
            except TimeoutError:
                self.close()
                raise ClientError(
                    f"{self.address} did not answer within {self.timeout:g} s: raise --timeout (in "
                    "Python, `timeout`), or send fewer lines per request"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                reason = str(error) or type(error).__name__
                failure = ClientError(
                    f"{self.address} did not answer ({reason}): check the address, or start the "
                    "server"
                )
            except ClientError as error:
                if error.status not in _BUSY:
                    raise
                failure = error
            if attempt >= retries:
                raise failure
            time.sleep(self.backoff * 2.0**attempt)


@dataclasses.dataclass(eq=False)
class GrpcClient(Client):
    """Client for the gRPC API of a server, at an address such as 127.0.0.1:8500.

    The client is thread-safe, and needs grpcio, TensorFlow and tensorflow-serving-api. If the
    server is unavailable, for example because it is still starting, the client retries for up to
    10 seconds, or for `timeout` seconds if `timeout` is shorter.
    """

    def __post_init__(self):
        # Imported here because importing TensorFlow takes seconds and REST does not need it.
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        # -1 removes gRPC's default limit of 4 MiB for answers.
        self._channel = grpc.insecure_channel(
            self.address, options=(("grpc.max_receive_message_length", -1),)
        )
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel. The client cannot send requests afterwards."""
        self._channel.close()

    def _send(self, method: Callable, request):
        """Sends a request, and returns the response.

        Args:
            method: method of the gRPC stub.
            request: request, to which this method adds the model's name and `version`, if any.
        """
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
                message = (
                    f"{self.address} did not answer within {self.timeout:g} s: raise --timeout (in "
                    "Python, `timeout`), or send fewer lines per request"
                )
            elif code == grpc.StatusCode.UNAVAILABLE:
                if time.monotonic() < give_up:
                    time.sleep(0.2)
                    continue
                message = (
                    f"{self.address} is unavailable ({message}): check the address, or try again "
                    "later"
                )
            raise ClientError(message, code.name)

    def _metadata(self) -> dict[str, Any]:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response = self._send(self._stub.GetModelMetadata, request)
        response.metadata["signature_def"].Unpack(signatures)
        return json_format.MessageToDict(signatures, preserving_proto_field_name=True)

    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        import tensorflow as tf
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        for name, values in inputs.items():
            is_text = all(isinstance(value, str) for value in values)
            dtype_name = "DT_STRING" if is_text else self.signature.inputs[name]
            dtype = tf.dtypes.as_dtype(types_pb2.DataType.Value(dtype_name))
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype=dtype))
        response = self._send(self._stub.Predict, request)
        outputs = response.outputs.items()
        return {name: as_json(name, tf.make_ndarray(proto)) for name, proto in outputs}


def format_answer(answer: Mapping[str, Any]) -> str:
    """Formats the model's outputs for a line as the text that the command prints.

    Args:
        answer: dict mapping output name to value; see `Client.answers`.
    """
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
        case {"vector": values}:
            return " ".join(f"{value:.7g}" for value in values)
    return json.dumps(answer, ensure_ascii=False)


def _parse(raw: bytes, status: int) -> dict:
    """Returns the JSON object in an HTTP response as a dict.

    Raises:
        ClientError: the status is not 200, or the response is not a JSON object.
    """
    try:
        answer = parse_json(raw)
    except ValueError:
        message = (
            f"the response {raw[:80]!r} (HTTP status {status}) is not a JSON object: check that "
            "--url is the address of a model server"
        )
        raise ClientError(message, status) from None
    if status != 200:
        raise ClientError(str(answer.get("error", f"HTTP status {status}")), status)
    return answer


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = Parser(prog="python -m export.client", description=__doc__)
    add = parser.add_argument
    add("text", nargs="*", help="inputs to the model (default: each line of stdin)")
    add(
        "--url",
        default="http://127.0.0.1:8501",
        help="URL of the REST server, with the path that a proxy adds, if any (default: "
        "%(default)s)",
    )
    add(
        "--grpc",
        metavar="HOST:PORT",
        help="address of the server for gRPC requests (default: send REST requests to --url)",
    )
    text = "folder of an exported model to run without a server (default: use a server)"
    local_path_argument("--local DIR", text)(parser)
    add("--name", default="model", help="name of the model on the server (default: %(default)s)")
    text = "version of the model (default: the newest version)"
    count("--version N", text, minimum=0, below=MAX_VERSION + 1)(parser)
    add(
        "--n-best",
        action="store_true",
        help="print all translations of each input line, each as INDEX ||| TEXT ||| SCORE, where "
        "INDEX counts the input lines from 0 (default: print only the best translation)",
    )
    text = (
        "value of a numeric input of the model, such as max_tokens=20 for a text generator "
        "(repeatable; default: the default values of a text generator)"
    )
    argument("--input NAME=NUMBER", text, action="append", default=[])(parser)
    count("--batch-size N", "maximum number of lines per request (default: %(default)s)", 32)(
        parser
    )
    text = "maximum time to wait for a response, in seconds (default: %(default)s)"
    count("--timeout SECONDS", text, 60.0, 0.001, 1e6)(parser)
    parsed = parser.parse_args(arguments)
    if parsed.grpc == "":
        parser.error("--grpc is empty: write HOST:PORT")
    if parsed.grpc and parsed.local is not None:
        parser.error("--grpc and --local are both set: give only one of them")
    pairs = [text.partition("=")[::2] for text in parsed.input]
    try:
        parsed.input = {name: parse_json(number, object) for name, number in pairs}
    except ValueError:
        parser.error(f"--input {' '.join(parsed.input)} is not valid: write NAME=NUMBER")
    return parsed


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    parsed = parse_arguments(arguments)
    client_class, address = (GrpcClient, parsed.grpc) if parsed.grpc else (RestClient, parsed.url)
    if parsed.local is not None:
        # Imported here because importing TensorFlow takes seconds.
        from export.local_client import LocalClient

        # Hides TensorFlow's deprecation warning about sessions, which TensorFlow Serving also uses.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)

        client_class, address = LocalClient, parsed.local
    client = client_class(address, parsed.name, parsed.version, parsed.timeout, parsed.batch_size)

    def show(lines: list[str], first: int) -> None:
        if parsed.n_best:
            for index, candidates in enumerate(client.n_best(lines), first - 1):
                for candidate in candidates:
                    print(f"{index} ||| {candidate.text} ||| {candidate.score:.4f}")
        else:
            for answer in client.answers(lines, first, **parsed.input):
                print(format_answer(answer))
        sys.stdout.flush()

    def answer(lines: list[str], first: int) -> None:
        try:
            show(lines, first)
        except ClientError as error:
            if error.status not in _LINE_REJECTED:
                raise
            if len(lines) == 1:
                raise ClientError(f"line {first}: {error}", error.status) from None
            # Send the lines one by one, to answer the lines before the rejected line.
            for line_number, line in enumerate(lines, first):
                answer([line], line_number)

    lines, line_number = iter(parsed.text or decoded(sys.stdin.buffer)), 1
    try:
        while chunk := list(itertools.islice(lines, parsed.batch_size)):
            answer(chunk, line_number)
            line_number += len(chunk)
    except ClientError as error:
        advice = f": check --name (now {parsed.name!r}) and --version"
        is_missing = error.status in (404, "NOT_FOUND")
        raise UserError(f"{error}{advice if is_missing else ''}") from None
    finally:
        client.close()


if __name__ == "__main__":
    raise SystemExit(main())
