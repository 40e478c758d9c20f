"""HTTP/1.1 on asyncio: one loop holds every connection, so an idle or slow client costs no thread.

Only what a model server needs: keep-alive, Content-Length and chunked bodies, gzip, limits and
time-outs on everything a client controls.
"""

import dataclasses
import zlib
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader

MAX_HEAD = 32 * 1024  # bytes of a request's head
_MAX_CHUNK_LINE = 1024
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Payload Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class HttpError(Exception):
    """A request that is not proper HTTP; the connection closes after the answer."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Head:
    """A request line and headers (names in lower case)."""

    method: str
    target: str
    headers: dict[str, str]
    keep_alive: bool

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.split("?", 1)[0]


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer; `headers` are extra ones."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, keep_alive: bool) -> bytes:
        """The bytes on the wire."""
        lines = [
            f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


async def read_head(reader: StreamReader, start: bytes) -> Head:
    """A request's head.

    Args:
        reader: the connection.
        start: its first byte, already read.

    Raises:
        HttpError: malformed (400) or too long (431).
    """
    try:
        raw = start + await reader.readuntil(b"\r\n\r\n")
    except IncompleteReadError:
        raise HttpError(400, "the request's head is cut short") from None
    except LimitOverrunError:
        raise HttpError(431, f"the request's head exceeds {MAX_HEAD} bytes") from None
    request_line, *lines = raw.decode("latin-1").lstrip("\r\n").rstrip("\r\n").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpError(400, "malformed request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "malformed header")
        name, value = name.lower(), value.strip()
        if name in ("content-length", "transfer-encoding") and headers.get(name, value) != value:
            raise HttpError(400, f"conflicting {name} headers")
        headers[name] = value
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" if parts[2] == "HTTP/1.1" else connection == "keep-alive"
    return Head(parts[0], parts[1], headers, keep_alive)


def body_length(head: Head, limit: int) -> int | None:
    """The announced length of the body in bytes; None for a chunked one.

    Raises:
        HttpError: 400 malformed, 411 missing where a body must come, 413 over `limit`,
            501 another transfer coding.
    """
    coding = head.headers.get("transfer-encoding", "").lower()
    length = head.headers.get("content-length")
    if coding:
        if length is not None:
            raise HttpError(400, "both Content-Length and Transfer-Encoding are given")
        if coding != "chunked":
            raise HttpError(501, f"transfer coding {coding[:40]!r} is not supported")
        return None
    if length is None:
        if head.method == "POST":
            raise HttpError(411, "a POST needs a Content-Length header")
        return 0
    if not (length.isascii() and length.isdigit()):
        raise HttpError(400, "Content-Length is not a number")
    if len(length) > 18 or int(length) > limit:
        raise HttpError(413, f"the body exceeds {limit} bytes")
    return int(length)


async def read_body(reader: StreamReader, head: Head, length: int | None, limit: int) -> bytes:
    """The body, with its content coding undone.

    Raises:
        HttpError: 400 malformed, 413 over `limit` (also once unpacked), 415 other codings.
        IncompleteReadError: the client went away.
    """
    body = await (_read_chunks(reader, limit) if length is None else reader.readexactly(length))
    coding = head.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding != "gzip":
        raise HttpError(415, f"content coding {coding[:40]!r} is not supported")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        body = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise HttpError(400, "the body is not valid gzip") from None
    if len(body) > limit:
        raise HttpError(413, f"the body exceeds {limit} bytes when unpacked")
    if not unpacker.eof:
        raise HttpError(400, "the gzip body is cut short")
    return body


async def _read_chunks(reader: StreamReader, limit: int) -> bytes:
    chunks, total = [], 0
    while True:
        digits = (await _line(reader)).split(b";", 1)[0].strip()
        try:
            size = int(digits, 16) if digits.isalnum() and len(digits) <= 12 else -1
        except ValueError:
            size = -1
        if size < 0:
            raise HttpError(400, "malformed chunk size")
        if size == 0:
            break
        total += size
        if total > limit:
            raise HttpError(413, f"the body exceeds {limit} bytes")
        chunks.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "malformed chunk")
    for _ in range(64):  # trailers, which nobody reads
        if not (await _line(reader)).strip():
            return b"".join(chunks)
    raise HttpError(400, "too many trailers")


async def _line(reader: StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except LimitOverrunError:
        raise HttpError(400, "malformed chunk") from None
    if len(line) > _MAX_CHUNK_LINE:
        raise HttpError(400, "malformed chunk")
    return line
