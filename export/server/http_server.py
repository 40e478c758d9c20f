"""The HTTP connections: reading requests, answering them, and closing down in order."""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable

from export.server.config import ServerConfig
from export.server.http_protocol import (
    MAX_HEAD,
    Head,
    HttpError,
    Response,
    body_length,
    read_body,
    read_head,
)

_LOG = logging.getLogger(__name__)
_LINGER_SECONDS = 2.0  # how long an oversized body is read and thrown away
Handler = Callable[[Head, bytes], Awaitable[Response]]


def error_response(status: int, message: str, *headers: tuple[str, str]) -> Response:
    """TensorFlow Serving's error shape: {"error": message}."""
    body = json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "replace")
    return Response(status, body, headers)


class HttpServer:
    """HTTP/1.1 in a thread of its own.

    Args:
        config: address, limits and time-outs.
        handler: answers a request; it must not raise.
    """

    def __init__(self, config: ServerConfig, handler: Handler):
        self._config = config
        self._handler = handler
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task, bool] = {}  # task -> whether it is amid a request
        self._stopping = False
        self.port = 0

    def start(self) -> None:
        """Binds and begins to accept.

        Raises:
            OSError: the address cannot be bound.
        """
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self._close_loop()
            raise

    def stop(self, grace_seconds: float) -> None:
        """Stops accepting, lets requests under way finish, and closes all connections."""
        self._call(self._stop(grace_seconds))
        self._close_loop()

    def _call(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _close_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, self._config.host, self._config.rest_port, limit=MAX_HEAD, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self, grace_seconds: float) -> None:
        self._stopping = True
        self._server.close()
        for task, busy in list(self._connections.items()):
            if not busy:
                task.cancel()
        if self._connections:
            _, late = await asyncio.wait(list(self._connections), timeout=grace_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if len(self._connections) >= self._config.max_connections or self._stopping:
            writer.write(error_response(503, "too many connections").encode(keep_alive=False))
            writer.close()
            return
        self._connections[task] = False
        try:
            await self._converse(task, reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away, or stopped reading
        except asyncio.CancelledError:
            pass  # shutdown of an idle connection: nobody awaits this task
        except Exception:
            _LOG.exception("a connection failed")
        finally:
            del self._connections[task]
            writer.close()

    async def _converse(self, task, reader, writer) -> None:
        keep_alive = True
        first = True
        while keep_alive and not self._stopping:
            self._connections[task] = False
            start = await self._first_byte(reader, first)
            if not start:
                return
            self._connections[task] = True
            first = refused = False
            try:
                head, body = await self._read(reader, writer, start)
                response = await self._handler(head, body)
                keep_alive = head.keep_alive and not self._stopping
            except HttpError as error:
                response, keep_alive = error_response(error.status, str(error)), False
                refused = True
            except TimeoutError:
                response, keep_alive = error_response(408, "the request came too slowly"), False
            writer.write(response.encode(keep_alive))
            async with asyncio.timeout(self._config.body_timeout):
                await writer.drain()
            if refused:
                await self._linger(reader, writer)

    async def _first_byte(self, reader: asyncio.StreamReader, first: bool) -> bytes:
        """Waits for a request to begin; empty when the client leaves or stays silent too long."""
        try:
            async with asyncio.timeout(
                self._config.header_timeout if first else self._config.idle_timeout
            ):
                return await reader.read(1)
        except TimeoutError:
            return b""

    async def _read(self, reader, writer, start: bytes) -> tuple[Head, bytes]:
        async with asyncio.timeout(self._config.header_timeout):
            head = await read_head(reader, start)
        length = body_length(head, self._config.max_body_bytes)
        if head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with asyncio.timeout(self._config.body_timeout):
            return head, await read_body(reader, head, length, self._config.max_body_bytes)

    async def _linger(self, reader, writer) -> None:
        """Reads on after refusing a request: closing at once would reset the connection before
        the client, still sending, has seen the answer."""
        if writer.can_write_eof():
            writer.write_eof()
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            return
