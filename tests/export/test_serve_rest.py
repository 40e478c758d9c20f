"""Tests of TensorFlow Serving's REST API on a live server."""

import concurrent.futures
import itertools
import json
import re
import socket
import time

import pytest

from export.server.servable import Servable
from macaron_tf.errors import UserError
from tests.export.serving_toys import call, http_client, raw_exchange, toy_server

pytestmark = pytest.mark.quick

PREDICT, STREAM = "/v1/models/toy:predict", "/v1/models/toy:stream"
HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\n".encode()


@pytest.fixture
def port(live_server):
    return live_server.port


def translated(text: str, version: int = 1) -> dict:
    best, length = f"v{version}:{text.upper()}", len(text.encode())
    scores = [pytest.approx(-0.1 * length), pytest.approx(-0.2 * length - 1)]
    return {"translations": [best, best + "?"], "scores": scores}


def test_status(port):
    ok = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": ok}]}
    assert call(port, "GET", "/v1/models/toy") == (200, expected)
    assert call(port, "GET", "/v1/models/toy/versions/1") == (200, expected)
    assert call(port, "GET", "/v1/models/toy/versions/7")[0] == 404
    assert call(port, "GET", "/healthz") == (200, {"ready": True})


def test_a_server_that_loads_is_not_ready(model_folder, monkeypatch):
    seen = []

    def warm_up(servable):
        for path in ("/healthz", "/v1/models/toy/metadata", "/v1/models/toy"):
            seen.append(call(server.port, "GET", path))

    monkeypatch.setattr(Servable, "warm_up", warm_up)
    server = toy_server(model_folder)
    with server:
        assert seen[0] == (503, {"ready": False})
        assert seen[1] == (503, {"error": "the model is not loaded yet: try again later"})
        assert seen[2][1]["model_version_status"][0]["state"] == "LOADING"


def metrics(port) -> dict[str, float]:
    """Returns a dict mapping metric names with labels to values."""
    with http_client(port) as connection:
        connection.request("GET", "/monitoring/prometheus/metrics")
        response = connection.getresponse()
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        lines = [line for line in response.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_predictions_by_status_and_time(port):
    before = metrics(port)
    for body in ({"instances": ["a"]}, {"instances": ["b"]}, {"instances": ["FAIL"]}):
        call(port, "POST", PREDICT, body)
    rise = {name: value - before.get(name, 0) for name, value in metrics(port).items()}
    count, latency = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
    assert rise[count + '_total{model_name="toy",status="OK"}'] == 2
    assert rise[count + '_total{model_name="toy",status="BAD_REQUEST"}'] == 1
    labels = 'model_name="toy"'
    assert rise[f"{latency}_count{{{labels}}}"] == 3
    assert rise[f'{latency}_bucket{{le="+Inf",{labels}}}'] == 3
    assert rise[f'{latency}_bucket{{le="10.0",{labels}}}'] == 0  # microseconds
    assert rise[f"{latency}_sum{{{labels}}}"] > 10 * 3


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
    page = raw_exchange(port, b"GET / HTTP/1.0\r\nHost: x\r\n\r\n").decode()
    assert page.startswith("HTTP/1.1 200 ") and "text/html; charset=utf-8" in page
    assert "//" not in page and "innerHTML" not in page
    body = {"instances": ["A dog is running."]}
    assert call(port, "GET", "/example") == (200, {"model": "toy", "body": body})


def test_predict_in_row_and_column_form(port):
    words = ["a dog", "größe"]
    status, answer = call(port, "POST", PREDICT, {"instances": words})
    assert (status, answer) == (200, {"predictions": [translated(word) for word in words]})
    status, answer = call(port, "POST", "/v1/models/toy/versions/1:predict", {"inputs": words})
    assert status == 200
    assert answer["outputs"]["translations"] == [translated(word)["translations"] for word in words]


@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "JSON"),  # test_serve_requests.py has others
        ({"inputs": [["a"]]}, "['a'] is not a value of type string"),
        ({"instances": ["a"] * 101}, "send 1 to 100 rows"),
        ({"instances": ["a"], "signature_name": "no"}, "serving_default"),
        ({"instances": ["FAIL"]}, "a row says FAIL"),  # without TensorFlow's text around it
        ({"inputs": {"source": ["a"], "target": []}, "signature_name": "score"}, "numbers of rows"),
    ],
)
def test_bad_requests_are_400_and_the_server_lives_on(port, body, words):
    status, answer = call(port, "POST", PREDICT, body)
    assert status == 400 and list(answer) == ["error"]
    assert words in answer["error"] and len(answer["error"]) < 1100
    assert call(port, "POST", PREDICT, {"instances": ["x"]})[0] == 200


def test_paths_methods_and_names(port):
    body = {"instances": ["a"]}
    missing = "there is no path /v1/models/other:predict: this server has the model toy"
    assert call(port, "POST", "/v1/models/other:predict", body) == (404, {"error": missing})
    assert call(port, "POST", "/v1/models/toy/versions/3:predict", body)[0] == 404
    assert call(port, "POST", f"/v1/models/toy/versions/{'9' * 5000}:predict", body)[0] == 404
    assert call(port, "POST", "/v1/models/toy:classify", body)[0] == 404
    assert call(port, "GET", "/v1/models/%ff")[0] == 404
    assert call(port, "GET", "/nothing")[0] == 404
    assert call(port, "GET", PREDICT) == (405, {"error": f"{PREDICT} does not allow GET: use POST"})
    assert call(port, "DELETE", "/v1/models/toy")[0] == 405
    answer = raw_exchange(port, b"HEAD /healthz HTTP/1.0\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "data, status",
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000, b"400"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x18\r\nabcde\r\n0\r\n\r\n", b"400"),
        (HEAD + b"Connection: close\r\n\r\n", b"400"),  # an empty body
    ],
)
def test_http_that_is_not_proper_is_answered(port, data, status):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)


def test_a_body_has_a_limit_also_in_pieces(port):
    status, answer = call(port, "POST", PREDICT, {"instances": ["a" * 2_000_000]})
    assert (status, answer) == (413, {"error": "the body exceeds 1000000 bytes: send fewer rows"})
    with http_client(port) as connection:
        connection.request("POST", PREDICT, body=itertools.repeat(b"a" * 1000, 1500))
        assert connection.getresponse().status == 413
    with http_client(port) as connection:
        body = [b'{"instances"', b': ["a"]}']
        connection.request("POST", PREDICT, body=iter(body), encode_chunked=True)
        assert json.load(connection.getresponse()) == {"predictions": [translated("a")]}


def test_a_client_that_goes_away_midway_disturbs_nobody(port, caplog):
    body = b'{"instances": ["a"]}'
    for sent in (
        b"nonsense\r\n\r\n",
        HEAD + b"Content-Length: 1000\r\n\r\n{",
        HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(sent)
    assert call(port, "POST", PREDICT, {"instances": ["a"]})[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_health_and_small_requests_are_answered_while_the_server_works(port):
    """Two requests compute, and bodies of 900 KB arrive; health waits for none of them."""
    slow = {"signature_name": "slow", "inputs": [300_000]}
    large = {"instances": ["a" * 900_000]}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(call, port, "POST", PREDICT, body) for body in [slow, slow]]
        others += [pool.submit(call, port, "POST", PREDICT, large) for _ in range(8)]
        answered = 0
        while not all(other.done() for other in others):
            assert call(port, "GET", "/healthz")[0] == 200
            answered += 1
    assert {other.result()[0] for other in others} == {200}
    assert answered > 2  # the first would wait for all others


def events(port: int, text: str = "a") -> tuple[int, list]:
    """Streams the answer to a text; returns the status and the events, or the error."""
    with http_client(port) as connection:
        connection.request("POST", STREAM, json.dumps({"instances": [text]}))
        response = connection.getresponse()
        said = response.read().decode()
    if response.status != 200:
        return response.status, json.loads(said)
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    parts = re.findall("data: (.*)\n\n", said)
    return 200, [part if part == "[DONE]" else json.loads(part) for part in parts]


def test_a_stream_is_server_sent_events(port, monkeypatch):
    assert events(port)[0] == 501  # the toy has no LiteRT decoder

    def stream(servable, inputs):
        text = inputs["text"].item().decode()
        if text == "long":
            raise UserError("a text is too long")
        yield f"{text} ü"
        if text == "late":
            raise ValueError("a reason")
        yield " on"

    monkeypatch.setattr(Servable, "stream", stream)
    assert events(port) == (200, [{"completion": "a ü"}, {"completion": " on"}, "[DONE]"])
    assert events(port, "long") == (400, {"error": "a text is too long"})
    assert events(port, "late")[1][1:] == [{"error": "ValueError: a reason"}]
    _, answer = call(port, "POST", STREAM, {"instances": ["a", "b"]})
    assert answer == {"error": "a stream has one row, not 2: send one row"}


def test_a_stream_ends_with_the_server(model_folder, monkeypatch):
    def stream(servable, inputs):
        while True:
            time.sleep(0.01)
            yield "on"

    monkeypatch.setattr(Servable, "stream", stream)
    body = b'{"instances": ["a"]}'
    head = f"POST {STREAM} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        toy_server(model_folder, grace_seconds=1.0) as server,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.sendall(head + body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        start = time.monotonic()
        assert not server.stop() and time.monotonic() - start < 2
