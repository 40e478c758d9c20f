"""HTTP/1.1 server with h11 as the parser and asyncio for the connections.

One event loop serves all connections, so an idle or slow client does not occupy a thread. Long work
runs in threads. All sizes and durations that a client controls are limited. A rejected request gets
a response before its connection is closed.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gzip
import http.client
import io
import json
import logging
import re
import threading
import zlib
from collections.abc import Awaitable, Callable

import h11

from export.server.config import ServerConfig
from export.server.core import Bodies
from export.server.errors import Code, ServingError

_LOG = logging.getLogger(__name__)
_MAX_HEAD = 32 * 1024  # maximum size of the request line and headers in bytes
_CHUNK_BYTES = 1024 * 1024  # number of bytes that are decompressed at once
_THREADS = 2  # threads for JSON and decompression, which would block the event loop
_LINGER_SECONDS = 2.0  # maximum time for reading the rest of a rejected request
# Scheme and host at the beginning of a request target in absolute form.
_ORIGIN = re.compile(r"https?://[^/?#]+(?=[/?#]|$)", re.I)


@dataclasses.dataclass(frozen=True)
class Head:
    """Request line and headers of a request.

    `path` has no query, scheme or host, and is still percent-encoded. Header names are in lower
    case.
    """

    method: str
    path: str
    headers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Response:
    """HTTP response. `headers` contains neither Content-Type nor Content-Length."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


Handler = Callable[[Head, bytearray], Awaitable[Response]]


def _rejection(status: int, message: str) -> ServingError:
    return ServingError(Code.INVALID_ARGUMENT, message, status)


def error_response(status: int, message: str, *headers: tuple[str, str]) -> Response:
    """Returns an error response in TensorFlow Serving's format, {"error": message}.

    Responses with status 503 also get the header Retry-After: 1 (second).

    Args:
        status: the HTTP status.
        message: a sentence for the client.
        headers: additional headers, as pairs of a name and a value.
    """
    if status == 503:
        headers += (("Retry-After", "1"),)
    body = json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "replace")
    return Response(status, body, headers)


class HttpServer:
    """HTTP/1.1 server that runs in its own thread.

    Args:
        config: the server's settings.
        handler: coroutine function that maps the head and the body of a request to the response.
            The function must not raise an exception.
        bodies: counter of the bytes of all requests in flight.
    """

    def __init__(self, config: ServerConfig, handler: Handler, bodies: Bodies):
        self._config = config
        self._handler = handler
        self._bodies = bodies
        self._connections: dict[asyncio.Task, _Connection] = {}
        self._stopping = False
        self.port = 0

    def start(self) -> None:
        """Opens the port and starts to accept connections.

        Raises:
            OSError: the port cannot be opened.
        """
        port = concurrent.futures.Future()
        serve = self._serve(port)
        self._thread = threading.Thread(target=asyncio.run, args=(serve,), name="http", daemon=True)
        self._thread.start()
        self.port = port.result()

    def stop(self, grace_seconds: float) -> None:
        """Stops accepting connections, finishes requests in flight, and closes all connections.

        Args:
            grace_seconds: maximum time for requests in flight to finish. Requests that take longer
                get no response.
        """
        self._loop.call_soon_threadsafe(self._grace.set_result, grace_seconds)
        self._thread.join()

    async def _serve(self, port: concurrent.futures.Future) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(_THREADS, "http"))
        self._grace = self._loop.create_future()
        config = self._config
        try:
            server = await asyncio.start_server(
                self._accept, config.host, config.rest_port, backlog=512
            )
        except BaseException as error:
            port.set_exception(error)
            return
        port.set_result(server.sockets[0].getsockname()[1])
        grace_seconds = await self._grace
        self._stopping = True
        server.close()
        for task, connection in list(self._connections.items()):
            if connection.idle:
                task.cancel()
        if self._connections:  # the end of the event loop closes the remaining connections
            await asyncio.wait(list(self._connections), timeout=grace_seconds)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        connection = _Connection(self._config, reader, writer)
        try:
            if len(self._connections) >= self._config.max_connections or self._stopping:
                await connection.answer(
                    error_response(
                        503,
                        "the server has too many connections or is shutting down: try again later",
                    ),
                    last=True,
                )
                return
            self._connections[task] = connection
            keep_alive = True
            while keep_alive and not self._stopping:
                keep_alive = await self._exchange(connection)
                await asyncio.sleep(0)  # lets the event loop serve other connections
        except (OSError, h11.ProtocolError):
            pass  # the client closed the connection, or stopped reading
        except asyncio.CancelledError:
            pass  # `_serve` closes idle connections at shutdown, and does not await this task
        except Exception:
            _LOG.exception("a connection failed")
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def _exchange(self, connection: "_Connection") -> bool:
        """Reads the next request of a connection and writes the response.

        Returns:
            Whether another request may follow on the connection.
        """
        is_rejected = False
        try:
            with self._bodies.reservation() as reserve:
                if (request := await connection.read_request(reserve)) is None:
                    return False
                response = await self._handler(*request)
                del request
        except ServingError as error:
            is_rejected, response = True, error_response(error.http_status, error.message)
        # The client may read slowly, so the body of the request is already freed here.
        keep_alive = await connection.answer(response, last=is_rejected or self._stopping)
        if is_rejected:
            await connection.linger()
        return keep_alive


class _Connection:
    """Connection to a client. All reads and writes have size and time limits.

    Attributes:
        idle: whether the connection waits for the beginning of a request.
    """

    def __init__(
        self, config: ServerConfig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.idle = True
        self._config = config
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._requests = 0
        self._is_head_request = False  # whether the response must have no body

    async def read_request(self, reserve: Callable[[int], None]) -> tuple[Head, bytearray] | None:
        """Reads the head and the body of the next request.

        Args:
            reserve: function to call with the number of received or decompressed bytes, see
                `Bodies.reservation`.

        Returns:
            The head and the decompressed body, or `None` if the client closed the connection or was
            idle for too long.

        Raises:
            ServingError: the request is malformed (HTTP status 400), too slow (408), a POST without
                a length (411) or too large (413). Other causes are a content coding other than
                identity and gzip (415), a head that is too long (431), a transfer coding other than
                chunked (501), an error of `reserve` (503), and an unsupported HTTP version (505).
        """
        config = self._config
        self.idle = True
        timeout = config.idle_timeout if self._requests else config.header_timeout
        self._requests += 1
        if not self._http.trailing_data[0]:  # no byte of the next request has arrived yet
            try:
                async with asyncio.timeout(timeout):
                    data = await self._reader.read(65536)
            except TimeoutError:
                return None
            if not data:
                return None
            self._http.receive_data(data)
        self.idle = False
        try:
            async with asyncio.timeout(config.header_timeout):
                request = await self._next_event()
            head = _head(request)
            length = head.headers.get("content-length", "0")
            if len(length) > 18 or int(length) > config.max_body_bytes:
                raise _rejection(
                    413, f"the body exceeds {config.max_body_bytes} bytes: send fewer rows"
                )
            async with asyncio.timeout(config.body_timeout):
                body = await self._read_body(reserve)
        except TimeoutError:
            raise _rejection(
                408, "the request arrived too slowly: send it again, or send fewer rows"
            ) from None
        except h11.RemoteProtocolError as error:
            # Cut off the buffer at the end of h11's message.
            message = str(error).partition(": bytearray")[0]
            raise _rejection(error.error_status_hint, message) from None
        return head, await _decompressed(body, head, config.max_body_bytes, reserve)

    async def _next_event(self):
        while True:
            # Read the method here, because h11 does not report the method of a malformed head.
            if self._http.their_state is h11.IDLE:
                self._is_head_request = self._http.trailing_data[0].startswith(b"HEAD ")
            if (event := self._http.next_event()) is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                response = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                self._writer.write(self._http.send(response))
            self._http.receive_data(await self._reader.read(65536))

    async def _read_body(self, reserve: Callable[[int], None]) -> bytearray:
        body, limit = bytearray(), self._config.max_body_bytes
        while isinstance(event := await self._next_event(), h11.Data):
            if len(body) + len(event.data) > limit:
                raise _rejection(413, f"the body exceeds {limit} bytes: send fewer rows")
            reserve(len(event.data))
            body += event.data
            if len(event.data) < 4096:  # many small chunks may follow, so serve other connections
                await asyncio.sleep(0)
        return body

    async def answer(self, response: Response, last: bool) -> bool:
        """Writes a response.

        Args:
            response: the response. For a HEAD request, its body is not sent.
            last: whether to announce in the response that the connection will be closed.

        Returns:
            Whether another request may follow on the connection.

        Raises:
            OSError: the client closed the connection, or reads the response too slowly.
        """
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *response.headers,
        ]
        if last:
            headers.append(("Connection", "close"))
        event = h11.Response(
            status_code=response.status,
            headers=headers,
            reason=http.client.responses.get(response.status, ""),
        )
        self._writer.write(self._http.send(event))
        if not self._is_head_request:
            self._writer.write(self._http.send(h11.Data(data=response.body)) or b"")
        if self._http.their_state is not h11.ERROR:
            self._http.send(h11.EndOfMessage())
        async with asyncio.timeout(self._config.body_timeout):
            await self._writer.drain()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def linger(self) -> None:
        """Reads and ignores the rest of a rejected request, for a limited time.

        If the server closed the connection while the client was still sending, TCP would reset the
        connection, and the client could not read the response.
        """
        if self._writer.can_write_eof():
            self._writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(65536):
                    pass


def _head(request: h11.Request) -> Head:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    path = request.target.decode("latin-1").split("?", 1)[0]
    if origin := _ORIGIN.match(path):
        path = path[origin.end() :] or "/"
    head = Head(request.method.decode(), path, headers)
    if request.http_version not in (b"1.0", b"1.1"):
        raise _rejection(505, "this version of HTTP is not supported: use HTTP/1.1 or HTTP/1.0")
    if "transfer-encoding" in headers and "content-length" in headers:
        raise _rejection(400, "the request has Content-Length and Transfer-Encoding: leave one out")
    if head.method == "POST" and not {"transfer-encoding", "content-length"} & headers.keys():
        raise _rejection(411, "the POST request has no Content-Length header: add it")
    return head


async def _decompressed(body: bytearray, head: Head, limit: int, reserve: Callable) -> bytearray:
    """Returns a request's body, decompressed if its content coding is gzip.

    Args:
        body: the body of the request.
        head: the head of the request.
        limit: maximum size of the decompressed body in bytes.
        reserve: function to call with the number of decompressed bytes (see `Bodies.reservation`).

    Raises:
        ServingError: the content coding is neither identity nor gzip, the body is not valid gzip
            data, or the decompressed body is too large. An error of `reserve` is also raised.
    """
    coding = head.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding != "gzip":
        raise _rejection(415, f"content coding {coding[:40]!r} is not supported: use gzip")
    file, decompressed = gzip.GzipFile(fileobj=io.BytesIO(body)), bytearray()
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            if len(decompressed) + len(chunk) > limit:
                raise _rejection(
                    413, f"the decompressed body exceeds {limit} bytes: send fewer rows"
                )
            reserve(len(chunk))
            decompressed += chunk
    except (EOFError, OSError, zlib.error):
        raise _rejection(400, "the body is not valid gzip data: compress it again") from None
    return decompressed
