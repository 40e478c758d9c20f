"""TensorFlow Serving's REST API for model status, metadata, predictions and metrics."""

import asyncio
import functools
import json
import logging
import pathlib
import re
import urllib.parse

from google.protobuf import json_format
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

from export.server import json_tensors, metrics
from export.server.core import ServingCore, Spec
from export.server.errors import Code, ServingError, from_exception, invalid, too_late
from export.server.http_server import Head, Response, error_response
from export.server.servable import Servable
from macaron_tf.io.serving import MAX_VERSION

_LOG = logging.getLogger(__name__)
_WHICH = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_PREDICT = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){_WHICH}:(?P<method>classify|regress|predict)", re.I
)
_STATUS = re.compile(rf"/v1/models(?:/(?P<name>[^/:]+){_WHICH}(?P<metadata>/metadata)?)?", re.I)
# Page for querying the models in a browser. It loads nothing from other servers.
_PAGE = pathlib.Path(__file__).with_name("page.html").read_bytes()
_POLICY = "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
_fields = functools.partial(
    json_format.MessageToDict,
    preserving_proto_field_name=True,
    always_print_fields_with_no_presence=True,
)


class RestApi:
    """REST API of the server. The method `handle` is the handler for `HttpServer`.

    The API has three paths in addition to the paths of TensorFlow Serving. `GET /healthz` returns
    status 200 if every model has a loaded version, and 503 otherwise. `GET /` returns a web page
    for trying the models. `GET /models` returns the model names and example inputs that the page
    shows.

    Four responses differ from TensorFlow Serving. A wrong method on a known path gets status 405
    instead of 400. An unknown path gets status 404 instead of 400. A status request for a model
    that is still loading gets status 503 instead of 200. The APIs `:classify` and `:regress` are
    not supported, and get status 501.
    """

    def __init__(self, core: ServingCore):
        self._core = core

    async def handle(self, head: Head, body: bytearray) -> Response:
        """Handles a request. Exceptions become error responses."""
        try:
            return await self._route(head, body)
        except ServingError as error:
            return error_response(error.http_status, error.message)
        except Exception as error:
            _LOG.exception("%s %s failed", head.method, head.path[:200])
            return error_response(500, from_exception(error).message)

    async def _route(self, head: Head, body: bytearray) -> Response:
        predict, status = _PREDICT.fullmatch(head.path), _STATUS.fullmatch(head.path)
        if not (predict or status or head.path in ("/", "/models", "/healthz", metrics.PATH)):
            raise ServingError(Code.NOT_FOUND, f"Malformed request: {head.method} {head.path}")
        method = "POST" if predict else "GET"
        if head.method != method and (head.method, method) != ("HEAD", "GET"):
            return error_response(
                405, f"this path does not allow {head.method}: use {method}", ("Allow", method)
            )
        if predict:
            name = urllib.parse.unquote(predict["name"], errors="replace")
            with self._core.measure(name, "REST"):
                return await self._predict(predict, body)
        if status:
            spec = _model_spec(status)
            if status["metadata"]:
                metadata = _fields(self._core.metadata(spec))
                del metadata["metadata"]["signature_def"]["@type"]
                return _json_response(metadata)
            statuses = self._core.statuses(spec)
            states = {version.state for version in statuses.model_version_status}
            if ModelVersionStatus.LOADING in states and ModelVersionStatus.AVAILABLE not in states:
                return _json_response(_fields(statuses), 503, ("Retry-After", "1"))
            return _json_response(_fields(statuses))
        if head.path == metrics.PATH:
            page = self._core.metrics.text().encode()
            return Response(200, page, content_type=metrics.CONTENT_TYPE)
        if head.path == "/":
            policy = ("Content-Security-Policy", _POLICY)
            return Response(200, _PAGE, (policy,), content_type="text/html; charset=utf-8")
        if head.path == "/models":
            examples = await asyncio.to_thread(self._core.examples)
            return _json_response({"models": list(self._core.models), "examples": examples})
        ready = self._core.ready
        return Response(200 if ready else 503, json.dumps({"ready": ready}).encode())

    async def _predict(self, match: re.Match, body: bytearray) -> Response:
        if match["method"].lower() != "predict":
            raise ServingError(
                Code.UNIMPLEMENTED, f"the {match['method']} API is not supported: use :predict"
            )
        spec, row_format = _model_spec(match), False

        def read(servable: Servable):
            nonlocal row_format
            document = json_tensors.parse_body(body, self._core.config.max_request_values)
            name = document.get("signature_name", "")
            if not isinstance(name, str):
                raise invalid("'signature_name' key must be a string value")
            signature = servable.signature(name)
            inputs, row_format = json_tensors.decode_inputs(document, signature)
            return signature, inputs

        future, *_ = await asyncio.to_thread(self._core.submit, spec, read)
        seconds = self._core.config.request_timeout
        try:
            outputs = await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise too_late(seconds) from None
        except Exception as error:
            raise from_exception(error) from error
        return Response(
            200, await asyncio.to_thread(json_tensors.encode_outputs, outputs, row_format)
        )


def _model_spec(match: re.Match) -> Spec:
    """Returns the model's name, version (or `None`) and label (or "") from a matched URL.

    Raises:
        ServingError: INVALID_ARGUMENT if the URL has no name, or a version above `MAX_VERSION`.
    """
    if match["name"] is None:
        raise invalid("Missing model name in request.")
    version = None
    if match["version"] is not None:
        version = int(match["version"]) if len(match["version"]) < 20 else MAX_VERSION + 1
        if version > MAX_VERSION:
            raise invalid(f"Failed to convert version: {match['version'][:40]} to numeric.")
    name = urllib.parse.unquote(match["name"], errors="replace")
    return name, version, urllib.parse.unquote(match["label"] or "", errors="replace")


def _json_response(document: dict, status: int = 200, *headers: tuple[str, str]) -> Response:
    body = json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8")
    return Response(status, body, headers)
