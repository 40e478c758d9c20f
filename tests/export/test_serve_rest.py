"""Tests of TensorFlow Serving's REST API on a live server."""

import asyncio
import contextlib
import gzip
import http.client
import json
import re
import socket
import threading
import time

import pytest

from export.server import http_server
from export.server.config import ServerConfig
from export.server.core import Bodies, ServingCore
from export.server.http_server import Head
from export.server.model_server import ModelServer
from export.server.rest import RestApi
from export.server.versions import VersionManager
from tests.export.serving_toys import call
from tests.export.test_versions import FakeServable, publish, settle, toy_in

pytestmark = pytest.mark.quick

PREDICT = "/v1/models/toy:predict"
HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n".encode()


@pytest.fixture
def port(live_server):
    return live_server.rest_port


def translated(text: str, version: int = 1) -> dict:
    best, length = f"v{version}:{text.upper()}", len(text.encode())
    scores = [pytest.approx(-0.1 * length), pytest.approx(-0.2 * length - 1)]
    return {"translations": [best, best + "?"], "scores": scores}


def raw_exchange(port: int, data: bytes) -> bytes:
    """Sends bytes, and returns what the server sends before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def test_status(port):
    ok = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": ok}]}
    assert call(port, "GET", "/v1/models/toy") == (200, expected)
    assert call(port, "GET", "/v1/models/toy/versions/1") == (200, expected)
    assert call(port, "GET", "/v1/models/toy/versions/7")[0] == 404
    assert call(port, "GET", "/healthz") == (200, {"ready": True})


def test_the_status_of_a_model_that_loads_is_503(tmp_path):
    answers = []

    class Slow(FakeServable):
        def warm_up(self):
            answers.append(asyncio.run(api.handle(Head("GET", "/v1/models/toy", {}), bytearray())))

    manager = VersionManager(toy_in(tmp_path), 0.01, loader=Slow)
    api = RestApi(ServingCore(ServerConfig("toy", "toy"), {"toy": manager}, batcher=None))
    for version in (1, 2):
        publish(tmp_path, version)
        assert settle(manager) == version
    first, second = answers
    assert first.status == 503 and ("Retry-After", "1") in first.headers
    assert json.loads(first.body)["model_version_status"][0]["state"] == "LOADING"
    assert second.status == 200  # version 1 answers while version 2 loads


def metrics(port) -> dict[str, float]:
    """Returns a dict mapping metric names with labels to values.

    Asserts that each line of the response has Prometheus's format.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/monitoring/prometheus/metrics")
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = response.read().decode().splitlines()
    connection.close()
    samples = [line for line in lines if not line.startswith("# TYPE :tensorflow:serving:")]
    assert all(re.fullmatch(r"[a-z_:]+\{(\w+=\"[^\"]*\",?)+\} \d+", line) for line in samples)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}


def test_metrics_count_predictions_by_status_and_time(live_server, port):
    before = metrics(port)
    for body in ({"instances": ["a"]}, {"instances": ["b"]}, {"instances": ["FAIL"]}):
        call(port, "POST", PREDICT, body)
    call(port, "POST", "/v1/models/other:predict", {"instances": ["a"]})  # not counted
    rise = {name: value - before.get(name, 0) for name, value in metrics(port).items()}
    count, latency = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
    assert rise[count + '{model_name="toy",status="OK"}'] == 2
    assert rise[count + '{model_name="toy",status="INVALID_ARGUMENT"}'] == 1
    labels = 'model_name="toy",API="Predict",entrypoint="REST"'
    assert rise[f"{latency}_count{{{labels}}}"] == 3
    assert rise[f'{latency}_bucket{{{labels},le="+Inf"}}'] == 3
    assert rise[f'{latency}_bucket{{{labels},le="10"}}'] == 0  # microseconds
    assert rise[f"{latency}_sum{{{labels}}}"] > 10 * 3
    assert call(port, "POST", "/monitoring/prometheus/metrics", b"")[0] == 405


def test_metadata(port):
    status, answer = call(port, "GET", "/v1/models/toy/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "serving_default_text:0",
    }


def test_the_page_is_served_and_names_no_other_host(port):
    page = raw_exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").decode()
    assert page.startswith("HTTP/1.1 200 ") and "text/html; charset=utf-8" in page
    assert "Content-Security-Policy: default-src 'self' 'unsafe-inline'" in page
    assert "//" not in re.sub(r"// .*", "", page) and "innerHTML" not in page
    examples = {"toy": {"text": "A dog is running."}}
    assert call(port, "GET", "/models") == (200, {"models": ["toy"], "examples": examples})


def test_predict_in_row_and_column_form(port):
    words = ["a dog", "größe"]
    status, answer = call(port, "POST", PREDICT, {"instances": words})
    assert (status, answer) == (200, {"predictions": [translated(word) for word in words]})
    status, answer = call(port, "POST", "/v1/models/toy/versions/1:predict", {"inputs": words})
    assert status == 200
    assert answer["outputs"]["translations"] == [translated(word)["translations"] for word in words]


def test_signatures_dtypes_and_scalars(port):
    rows = [{"source": "abc", "target": "a"}, {"source": "", "target": ""}]
    body = {"signature_name": "score", "instances": rows}
    assert call(port, "POST", PREDICT, body) == (200, {"predictions": [-2.0, 0.0]})
    row = {"ints": [1, 2, 3], "floats": 0.5, "flags": True, "image_bytes": {"b64": "AA=="}}
    body = {"signature_name": "numbers", "instances": [row]}
    expected = {"total": 7, "half": 0.25, "flipped": False, "out_bytes": {"b64": "AP8="}}
    assert call(port, "POST", PREDICT, body) == (200, {"predictions": [expected]})
    body = {"signature_name": "scalar", "inputs": {"x": 1}}
    assert call(port, "POST", PREDICT, body) == (200, {"outputs": 2.0})
    body = {"signature_name": "motto", "inputs": ["a", "b"]}
    assert call(port, "POST", PREDICT, body) == (200, {"outputs": "abg\u00fct\0"})


@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "JSON Parse error"),  # test_serve_json has others
        ({"inputs": []}, "empty"),
        ({"inputs": [["a"]]}, "shape [1,1], but must have shape [-1]"),
        ({"instances": ["a"] * 101}, "at most 100"),
        ({"instances": ["a"], "signature_name": "no"}, "serving_default"),
        ({"instances": ["a"], "signature_name": 3}, "signature_name"),
        ({"instances": ["FAIL"]}, '"a row says FAIL"'),  # without TensorFlow's text around it
        ({"inputs": {"source": ["a"], "target": []}, "signature_name": "score"}, "numbers of rows"),
    ],
)
def test_bad_requests_are_400_and_the_server_lives_on(port, body, words):
    status, answer = call(port, "POST", PREDICT, body)
    assert status == 400 and list(answer) == ["error"]
    assert words in json.dumps(answer)
    assert len(answer["error"]) < 1100
    assert call(port, "POST", PREDICT, {"instances": ["x"]})[0] == 200


def test_paths_methods_and_names(port):
    body = {"instances": ["a"]}
    assert call(port, "POST", "/v1/models/other:predict", body) == (
        404,
        {"error": "Servable not found for request: Latest(other)"},
    )
    assert call(port, "POST", "/v1/models/toy/versions/3:predict", body)[0] == 404
    assert call(port, "POST", f"/v1/models/toy/versions/{'9' * 30}:predict", body)[0] == 400
    assert call(port, "POST", "/v1/models/toy/labels/stable:predict", body)[0] == 400
    assert call(port, "POST", "/v1/models/toy:classify", body)[0] == 501
    assert call(port, "GET", "/v1/models/other")[0] == 404
    assert call(port, "GET", "/v1/models")[0] == 400
    assert call(port, "GET", "/nothing")[0] == 404
    assert call(port, "GET", PREDICT)[0] == 405
    assert call(port, "DELETE", "/v1/models/toy")[0] == 405


def test_a_line_of_100_000_characters(port):
    line = "wörter " * 14_286
    status, answer = call(port, "POST", PREDICT, {"instances": [line]})
    assert status == 200
    assert answer["predictions"][0]["translations"][0] == "v1:" + line.upper()


def test_http_that_is_not_proper(port):
    assert raw_exchange(port, HEAD + b"\r\n").startswith(b"HTTP/1.1 411 ")
    assert raw_exchange(port, HEAD + b"Content-Length: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw_exchange(port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    long_head = b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000 + b"\r\n\r\n"
    assert raw_exchange(port, long_head).startswith(b"HTTP/1.1 431 ")
    assert raw_exchange(port, b"GET / HTTP/1.1\r\nHo") == raw_exchange(port, b"GET / HTTP/1.1\r\n")
    both = HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"
    assert raw_exchange(port, both).startswith(b"HTTP/1.1 400 ")
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for size in (b"0x18", b"-5", b"+5", b"1_8", b" 5"):
        refusal = raw_exchange(port, chunked + size + b"\r\nabcde\r\n0\r\n\r\n")
        assert refusal.startswith(b"HTTP/1.1 400 ")
        assert refusal.endswith(b'{"error": "illegal chunk header"}')
    newer = b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n"
    assert raw_exchange(port, newer).startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize(
    "line, header, status",
    [
        (b"/v1/models/toy", b"Host: x", b"200"),
        (b"/nothing", b"Host: x", b"404"),
        (b"/healthz", b"Content-Encoding: br\r\nHost: x", b"415"),
        (b"/healthz", b"Content-Length: x\r\nHost: x", b"400"),  # not even parsed
        (b"/healthz", b"A: b", b"400"),
    ],
)
def test_an_answer_to_head_has_no_body(port, line, header, status):
    answer = raw_exchange(port, b"HEAD %s HTTP/1.1\r\n%s\r\n\r\n" % (line, header))
    assert answer.startswith(b"HTTP/1.1 %s " % status) and b"\r\nContent-Length: " in answer
    assert answer.partition(b"\r\n\r\n")[2] == b""


def test_an_absolute_target_is_the_path_behind_its_origin(port):
    end = b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for origin in (b"http://x", b"HTTPS://x:80"):
        answer = raw_exchange(port, b"GET " + origin + b"/healthz?a=http://b/c" + end)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert raw_exchange(port, b"GET " + origin + end).startswith(b"HTTP/1.1 200 ")


def test_an_oversize_body_is_413(port):
    status, answer = call(port, "POST", PREDICT, {"instances": ["a" * 2_000_000]})
    assert status == 413 and "1000000 bytes" in answer["error"]


def test_chunked_gzip_and_expect_continue(port):
    body = json.dumps({"instances": ["a"]}).encode()
    expected = (200, {"predictions": [translated("a")]})
    assert (
        call(port, "POST", PREDICT, gzip.compress(body), {"Content-Encoding": "gzip"}) == expected
    )
    members = gzip.compress(body[:5]) + gzip.compress(body[5:])
    assert call(port, "POST", PREDICT, members, {"Content-Encoding": "gzip"}) == expected
    short = gzip.compress(body) + gzip.compress(body)[:-3]
    assert call(port, "POST", PREDICT, short, {"Content-Encoding": "gzip"})[0] == 400
    padded = gzip.compress(b"") * 20_000 + members + bytes(512)
    assert call(port, "POST", PREDICT, padded, {"Content-Encoding": "gzip"}) == expected
    bomb = gzip.compress(b"") + gzip.compress(b" " * 10_000_000)
    assert call(port, "POST", PREDICT, bomb, {"Content-Encoding": "gzip"})[0] == 413
    assert call(port, "POST", PREDICT, b"no", {"Content-Encoding": "gzip"})[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", PREDICT, body=iter([body[:5], body[5:]]), encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == expected
    connection.close()
    head = HEAD + b"Expect: 100-continue\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")


@contextlib.contextmanager
def bare_server(handler, bodies=None):
    """Yields the port of an HTTP server without a model."""
    config = ServerConfig("x", "x", rest_port=0)
    server = http_server.HttpServer(config, handler, bodies or Bodies(1 << 30))
    server.start()
    yield server.port
    server.stop(0)


def test_gzip_is_unpacked_while_others_are_answered(port, monkeypatch):
    held, free = threading.Event(), threading.Event()

    class Slow(gzip.GzipFile):
        def read(self, size=-1):
            held.set()
            assert free.wait(10), "the event loop waited for it"
            return super().read(size)

    monkeypatch.setattr(http_server.gzip, "GzipFile", Slow)
    body, answers = gzip.compress(b'{"instances": ["a"]}'), []
    ask = (port, "POST", PREDICT, body, {"Content-Encoding": "gzip"})
    slow = threading.Thread(target=lambda: answers.append(call(*ask)))
    slow.start()
    assert held.wait(10)
    assert call(port, "GET", "/healthz") == (200, {"ready": True})
    assert not answers
    free.set()
    slow.join()
    assert answers == [(200, {"predictions": [translated("a")]})]


def test_a_client_that_sends_many_pieces_waits_for_the_others():
    turns = []

    class Watched(Bodies):
        """A `Bodies` that appends chunk sizes to `turns`.

        The string "others" is appended when the event loop runs another callback.
        """

        @contextlib.contextmanager
        def reservation(self):
            def take(count):
                if not turns:
                    asyncio.get_running_loop().call_soon(turns.append, "others")
                turns.append(count)

            yield take

    async def handler(head, body):
        if head.method == "GET" and len(turns) < 2:
            asyncio.get_running_loop().call_soon(turns.append, "others")
        turns.append(head.path)
        return http_server.Response(200, b"")

    with bare_server(handler, Watched(0)) as port:
        chunks = b"1\r\na\r\n" * 1000 + b"0\r\n\r\n"
        raw_exchange(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert len(turns) == 1002 and turns.index("others") < 100
        turns.clear()
        answer = raw_exchange(
            port, b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(9))
        )
        assert answer.count(b"HTTP/1.1 200 ") == 9 and turns[:4] == ["/0", "others", "/1", "/2"]


def test_the_bytes_of_all_requests_together_have_a_limit():
    bodies, held = Bodies(1_000_000), []

    async def handler(head, body):
        held.append(bodies.total)
        return http_server.Response(200, b'"%d"' % len(body))

    def settled(count):
        while bodies.total != count:
            time.sleep(0.01)
        return True

    with bare_server(handler, bodies) as port, contextlib.ExitStack() as stack:
        place = ("127.0.0.1", port)
        slow = [stack.enter_context(socket.create_connection(place, 20)) for _ in range(3)]
        for connection in slow:
            connection.sendall(HEAD + b"Content-Length: 400000\r\n\r\n" + bytes(300_000))
        assert settled(900_000)
        refusal = raw_exchange(port, HEAD + b"Content-Length: 300000\r\n\r\n" + bytes(300_000))
        assert refusal.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in refusal
        assert b"hold 9" in refusal and settled(900_000)
        # A compressed body counts with its unpacked size, and short requests are always answered.
        bomb, short = gzip.compress(bytes(300_000)), gzip.compress(bytes(60_000))
        assert call(port, "POST", "/", bomb, {"Content-Encoding": "gzip"})[0] == 503
        assert call(port, "POST", "/", short, {"Content-Encoding": "gzip"}) == (200, "60000")
        assert held == [900_000 + len(short) + 60_000]
        for connection in slow[:2]:
            connection.close()
        assert settled(300_000)
        slow[2].sendall(bytes(100_000))
        assert slow[2].recv(65536).startswith(b"HTTP/1.1 200 ") and settled(0)


def test_a_client_that_goes_away_midway_disturbs_nobody(port, caplog):
    for head in [b"nonsense\r\n\r\n", HEAD + b"Content-Length: x\r\n\r\n"] * 20:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head)  # closed before the refusal
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
    body = b'{"instances": ["a"]}'
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # Closed before the answer.
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert call(port, "POST", PREDICT, {"instances": ["a"]})[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_idle_and_slow_connections_block_nobody(model_folder):
    """The server answers requests although over 100 idle or slow connections are open."""
    never = {"header_timeout": 9e5, "idle_timeout": 9e5}
    config = ServerConfig(str(model_folder), "toy", rest_port=0, grpc_port=0, **never)
    with ModelServer(config) as server, contextlib.ExitStack() as stack:
        place = ("127.0.0.1", server.rest_port)
        idle = [stack.enter_context(socket.create_connection(place)) for _ in range(101)]
        idle[0].sendall(b"GET /v1/models/toy HT")
        assert call(server.rest_port, "POST", PREDICT, {"instances": ["a"]})[0] == 200


def test_idle_and_slow_connections_are_dropped(port):
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    slow = socket.create_connection(("127.0.0.1", port))
    slow.sendall(b"GET /v1/models/toy HT")
    assert slow.recv(100).startswith(b"HTTP/1.1 408 ")  # after header_timeout, 1 s here
    assert all(connection.recv(10) == b"" for connection in idle)
    for connection in [*idle, slow]:
        connection.close()
