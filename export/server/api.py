"""TensorFlow Serving's REST API for one model, with streams, health, metrics and a page."""

import asyncio
import contextlib
import functools
import http
import json
import logging
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import prometheus_client
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import ServingError, from_exception
from export.server.json_tensors import decode_request, encode_outputs
from export.server.servable import Arrays, Servable
from export.server.versions import Versions

_LOG = logging.getLogger(__name__)
_SMALL = 64 * 1024  # bytes of a body that is converted in the event loop
# Page for querying the model in a browser. It loads nothing from other servers.
_PAGE = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
_PREFIX = ":tensorflow:serving:request_"  # as TensorFlow Serving names its metrics
# Upper bounds of TensorFlow Serving's histogram buckets, in microseconds.
_BOUNDS = [10 * 1.8**i for i in range(33)]

_FIELDS = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}

prometheus_client.disable_created_metrics()


class Api:
    """REST API of a model."""

    def __init__(self, config: ServerConfig, versions: Versions):
        self._config, self._versions = config, versions
        self._batcher = Batcher(config)
        self._registry = prometheus_client.CollectorRegistry()
        self._count = prometheus_client.Counter(
            f"{_PREFIX}count", "Predictions", ["model_name", "status"], registry=self._registry
        )
        self._latency = prometheus_client.Histogram(
            f"{_PREFIX}latency", "In us", ["model_name"], registry=self._registry, buckets=_BOUNDS
        ).labels(config.name)
        routes = [
            Route("/", self._page),
            Route("/example", self._example),
            Route("/healthz", self._health),
            Route("/monitoring/prometheus/metrics", self._metrics),
        ]
        model = f"/v1/models/{config.name}"
        for path in (model, f"{model}/versions/{{version}}"):
            routes += [
                Route(path, self._status),
                Route(f"{path}/metadata", self._metadata),
                Route(f"{path}:predict", self._predict, methods=["POST"]),
                Route(f"{path}:stream", self._stream, methods=["POST"]),
            ]
        self.app = Starlette(
            routes=routes,
            exception_handlers={
                ServingError: lambda request, error: _refusal(error.status, str(error)),
                HTTPException: self._refuse_path,
                ClientDisconnect: lambda request, error: Response(status_code=400),  # nobody reads
                Exception: self._fail,
            },
        )

    def _refuse_path(self, request: Request, error: HTTPException) -> Response:
        path = request.url.path[:200]
        message = f"there is no path {path}: this server has the model {self._config.name}"
        if error.status_code == 405:
            message = f"{path} does not allow {request.method[:20]}: use {error.headers['Allow']}"
        return _refusal(error.status_code, message, error.headers)

    def _fail(self, request: Request, error: Exception) -> Response:
        _LOG.error("%s failed", request.url.path[:200], exc_info=error)
        return _refusal(500, str(from_exception(error)))

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE)

    async def _example(self, request: Request) -> Response:
        return JSONResponse({"model": self._config.name, "body": self._versions.get().example})

    async def _health(self, request: Request) -> Response:
        ready = self._versions.current is not None
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        text = prometheus_client.generate_latest(self._registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def _status(self, request: Request) -> Response:
        states = [
            {
                "version": str(version),
                "state": state,
                "status": {"error_code": "UNKNOWN" if message else "OK", "error_message": message},
            }
            for version, state, message in self._versions.states(request.path_params.get("version"))
        ]
        return JSONResponse({"model_version_status": states})

    async def _metadata(self, request: Request) -> Response:
        servable = self._versions.get(request.path_params.get("version"))
        signatures = {
            name: json_format.MessageToDict(definition, **_FIELDS)
            for name, definition in servable.signature_defs.items()
        }
        name, version = self._config.name, str(servable.version)
        spec = {"name": name, "signature_name": "", "version": version}
        metadata = {"signature_def": {"signature_def": signatures}}
        return JSONResponse({"model_spec": spec, "metadata": metadata})

    async def _predict(self, request: Request) -> Response:
        with self._measured():
            servable, signature, inputs, row_format = await self._read(request)
            # A request whose client has gone away must not cancel its batch.
            outputs = await asyncio.shield(self._batcher.submit(servable, signature, inputs))
            encode = functools.partial(encode_outputs, outputs, row_format)
            is_small = sum(array.size for array in outputs.values()) < 4096
            answer = encode() if is_small else await asyncio.to_thread(encode)
            return Response(answer, media_type="application/json")

    async def _stream(self, request: Request) -> Response:
        """Answers a request with one row by server-sent events, each with a part of the text."""
        servable, _, inputs, _ = await self._read(request)
        rows = len(next(iter(inputs.values())))
        if rows != 1:
            raise ServingError(400, f"a stream has one row, not {rows}: send one row")
        parts = servable.stream(inputs)
        try:  # the text is refused here, before the answer begins
            first = await asyncio.to_thread(next, parts, None)
        except Exception as error:
            raise from_exception(error) from error
        return StreamingResponse(self._events(first, parts), media_type="text/event-stream")

    async def _events(self, part: str | None, parts: Iterator[str]) -> AsyncIterator[str]:
        try:
            while part is not None:
                yield f"data: {json.dumps({'completion': part}, ensure_ascii=False)}\n\n"
                part = await asyncio.to_thread(next, parts, None)
            yield "data: [DONE]\n\n"
        except Exception as error:
            _LOG.exception("a stream failed")
            yield f"data: {json.dumps({'error': str(from_exception(error))})}\n\n"

    async def _read(self, request: Request) -> tuple[Servable, str, Arrays, bool]:
        """Returns the version, the signature, the inputs and whether they came as rows."""
        limit, body = self._config.max_body_bytes, bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise ServingError(413, f"the body exceeds {limit} bytes: send fewer rows")
        servable = self._versions.get(request.path_params.get("version"))
        arguments = (body, servable.inputs, self._config.max_request_rows)
        if len(body) <= _SMALL:
            return servable, *decode_request(*arguments)
        return servable, *await asyncio.to_thread(decode_request, *arguments)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        """Counts one prediction by its status, with its latency."""
        start, status = time.monotonic(), 500
        try:
            yield
            status = 200
        except ServingError as error:
            status = error.status
            raise
        finally:
            self._count.labels(self._config.name, http.HTTPStatus(status).name).inc()
            self._latency.observe((time.monotonic() - start) * 1e6)


def _refusal(status: int, message: str, headers: dict[str, Any] | None = None) -> Response:
    """Returns an error in TensorFlow Serving's format, {"error": message}."""
    headers = {**(headers or {}), **({"Retry-After": "1"} if status == 503 else {})}
    return JSONResponse({"error": message}, status, headers)
