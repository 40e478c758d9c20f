"""Fuzz tests that send almost valid requests and random bytes to a live server over HTTP."""

import json

from tests.fuzz.profiles import examples, hypothesis, strategies  # isort: skip

from tests.export.conftest import live_server, toy_versions  # noqa: F401, fixtures
from tests.export.test_serve_rest import raw_exchange

_METHODS = [b"GET", b"POST", b"HEAD", b"PUT", b"get", b"OPTIONS", b"CONNECT", b"\xff", b""]
_TARGETS = [
    b"/v1/models/toy:predict", b"/v1/models/toy", b"/v1/models/toy/metadata", b"/", b"*",
    b"/v1/models/toy/versions/1:predict", b"/v1/models/toy/versions/9:predict", b"//", b"/%00",
    b"/v1/models/toy/versions/99999999999999999999", b"http://x/v1/models/toy", b"/v1/models/%ff",
    b"/v1/models/toy/labels/x:predict", b"/v1/models/toy:classify", b"/v1/models/toy?x=1#y",
]  # fmt: skip
_HEADERS = [
    b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Content-Length: -1",
    b"Expect: 100-continue", b"Content-Encoding: gzip", b"Connection: close",
    b"Connection: upgrade", b"Host: y", b": z", b"Content-Length: 99999999999999999999",
    b"X: \xff", b"A", b"Transfer-Encoding: x, chunked",
]  # fmt: skip
_KEYS = ["instances", "inputs", "signature_name", "x", "text", "b64"]
_texts = strategies.text(max_size=5) | strategies.sampled_from(_KEYS)
_json = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | _texts,
    lambda inner: (
        strategies.lists(inner, max_size=4) | strategies.dictionaries(_texts, inner, max_size=3)
    ),
    max_leaves=10,
)
_bodies = strategies.one_of(
    strategies.binary(max_size=40),
    _json.map(lambda value: json.dumps(value).encode()),
    _json.map(lambda value: json.dumps({"instances": value}).encode()),
    strategies.sampled_from([b"[" * 5000, b'{"instances": [' + b"9" * 5000 + b"]}", b"0x5\r\nabc"]),
)


@strategies.composite
def requests(draw):
    """Draws the bytes of an HTTP request, which is often almost valid."""
    body = draw(_bodies)
    target = draw(strategies.sampled_from(_TARGETS) | strategies.binary(max_size=10))
    lines = [b"%s %s HTTP/1.1" % (draw(strategies.sampled_from(_METHODS)), target), b"Host: x"]
    if draw(strategies.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    lines += draw(strategies.lists(strategies.sampled_from(_HEADERS), max_size=2))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@examples(40, 200)
@hypothesis.given(sent=strategies.binary(max_size=60) | requests())
def test_any_request(live_server, sent):  # noqa: F811
    answer = raw_exchange(live_server.port, sent)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
    assert not answer.startswith(b"HTTP/1.1 500"), answer
    good = raw_exchange(live_server.port, b"GET /v1/models/toy HTTP/1.1\r\nHost: x\r\n\r\n")
    assert good.startswith(b"HTTP/1.1 200 ")
