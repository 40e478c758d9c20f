"""TensorFlow Serving's REST API: model status, metadata and predict."""

import asyncio
import concurrent.futures
import json
import logging
import re
import urllib.parse

from google.protobuf import json_format

from export.server import json_tensors
from export.server.core import ServingCore
from export.server.errors import Code, ServingError, from_exception, invalid, too_late
from export.server.http_server import Head, Response, error_response

_LOG = logging.getLogger(__name__)
_WHICH = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_PREDICT = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){_WHICH}:(?P<method>classify|regress|predict)", re.I
)
_STATUS = re.compile(rf"/v1/models(?:/(?P<name>[^/:]+){_WHICH}(?P<metadata>/metadata)?)?", re.I)
_MAX_VERSION = 2**63 - 1
_DECODERS = 2  # threads that parse and print JSON: the loop itself never works long


class RestApi:
    """Answers HTTP requests; `handle` goes to `HttpServer`.

    Beyond TensorFlow Serving: `GET /healthz` (200 when a version is loaded, else 503). A wrong
    method on a known path is 405 and an unknown path 404; TensorFlow Serving answers 400 to both.
    """

    def __init__(self, core: ServingCore):
        self._core = core
        self._pool = concurrent.futures.ThreadPoolExecutor(_DECODERS, thread_name_prefix="json")

    async def handle(self, head: Head, body: bytes) -> Response:
        """The answer to one request; every failure becomes an answer."""
        try:
            return await self._route(head, body)
        except ServingError as error:
            retry = (("Retry-After", "1"),) if error.http_status == 503 else ()
            return error_response(error.http_status, error.message, *retry)
        except Exception as error:
            _LOG.exception("%s %s failed", head.method, head.path[:200])
            return error_response(500, from_exception(error).message)

    def close(self) -> None:
        """Ends the JSON threads."""
        self._pool.shutdown()

    async def _route(self, head: Head, body: bytes) -> Response:
        if head.path == "/healthz":
            if head.method != "GET":
                return _not_allowed("GET")
            ready = self._core.ready
            return Response(200 if ready else 503, json.dumps({"ready": ready}).encode())
        if match := _PREDICT.fullmatch(head.path):
            if head.method != "POST":
                return _not_allowed("POST")
            return await self._predict(match, body)
        if match := _STATUS.fullmatch(head.path):
            if head.method != "GET":
                return _not_allowed("GET")
            return self._metadata(match) if match["metadata"] else self._status(match)
        raise ServingError(Code.NOT_FOUND, f"Malformed request: {head.method} {head.path}")

    def _status(self, match: re.Match) -> Response:
        statuses = self._core.statuses(*_model_spec(match))
        versions = [
            {
                "version": str(status.version),
                "state": status.state,
                "status": {"error_code": status.code.name, "error_message": status.message},
            }
            for status in statuses
        ]
        return _json_response({"model_version_status": versions})

    def _metadata(self, match: re.Match) -> Response:
        name, version, label = _model_spec(match)
        number, signatures = self._core.signatures(name, version, label)
        spec = {"name": name, "signature_name": "", "version": str(number)}
        printed = json_format.MessageToDict(
            signatures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return _json_response({"model_spec": spec, "metadata": {"signature_def": printed}})

    async def _predict(self, match: re.Match, body: bytes) -> Response:
        if match["method"].lower() != "predict":
            raise ServingError(
                Code.UNIMPLEMENTED, f"the {match['method']} API is not served; use :predict"
            )
        loop = asyncio.get_running_loop()
        spec = _model_spec(match)
        future, row_form = await loop.run_in_executor(self._pool, self._submit, spec, body)
        seconds = self._core.config.request_timeout
        try:
            outputs = await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise too_late(seconds) from None
        except Exception as error:
            raise from_exception(error) from error
        encoded = await loop.run_in_executor(
            self._pool, json_tensors.encode_outputs, outputs, row_form
        )
        return Response(200, encoded)

    def _submit(self, spec, body: bytes) -> tuple[concurrent.futures.Future, bool]:
        lease = self._core.acquire(*spec)
        try:
            document = json_tensors.parse_body(body)
            signature = lease.servable.signature(json_tensors.signature_name(document))
            inputs, row_form = json_tensors.decode_inputs(document, signature)
        except BaseException:
            lease.release()
            raise
        return self._core.submit(lease, signature, inputs), row_form


def _model_spec(match: re.Match) -> tuple[str, int | None, str]:
    """Name, version and label of a URL."""
    if match["name"] is None:
        raise invalid("Missing model name in request.")
    version = None
    if match["version"] is not None:
        version = int(match["version"]) if len(match["version"]) < 20 else _MAX_VERSION + 1
        if version > _MAX_VERSION:
            raise invalid(f"Failed to convert version: {match['version'][:40]} to numeric.")
    name = urllib.parse.unquote(match["name"], errors="replace")
    return name, version, urllib.parse.unquote(match["label"] or "", errors="replace")


def _json_response(document: dict) -> Response:
    return Response(200, json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8"))


def _not_allowed(method: str) -> Response:
    return error_response(405, f"use {method} on this path", ("Allow", method))
