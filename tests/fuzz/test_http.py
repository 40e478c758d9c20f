"""Fuzz tests that send random and almost valid bodies to a live server over HTTP."""

import json

from tests.fuzz.profiles import examples, hypothesis, strategies  # isort: skip

from tests.export.conftest import live_server, toy_versions  # noqa: F401, fixtures
from tests.export.serving_toys import raw_exchange

_TARGETS = [
    b"/v1/models/toy:predict", b"/v1/models/toy/versions/1:predict", b"/v1/models/toy:classify",
    b"/v1/models/toy/versions/9:predict", b"/v1/models/toy/versions/99999999999999999999:predict",
    b"/v1/models/%ff:predict", b"/v1/models/toy/metadata", b"/%00", b"*",
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


@examples(40, 200)
@hypothesis.given(target=strategies.sampled_from(_TARGETS), body=_bodies)
def test_any_request(live_server, target, body):  # noqa: F811
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (target, len(body))
    answer = raw_exchange(live_server.port, head + body)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
    assert not answer.startswith(b"HTTP/1.1 500"), answer
    good = raw_exchange(live_server.port, b"GET /v1/models/toy HTTP/1.1\r\nHost: x\r\n\r\n")
    assert good.startswith(b"HTTP/1.1 200 ")
