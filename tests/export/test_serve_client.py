"""The clients, against a live server and against none."""

import http.server
import io
import json
import socket
import threading

import pytest

from export import client as command
from export.client import (
    Candidate,
    GrpcTranslationClient,
    TranslationClient,
    TranslationError,
)
from macaron_tf.errors import UserError

LINES = ["a dog", "größe", "", "x" * 3000, "two\twords"]


@pytest.fixture(params=["rest", "grpc"])
def client(request, live_server):
    if request.param == "rest":
        made = TranslationClient(live_server.url, "toy", batch_size=2)
    else:
        made = GrpcTranslationClient(f"127.0.0.1:{live_server.grpc_port}", "toy", batch_size=2)
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_translate_n_best_and_score(client):
    assert client.translate(LINES) == ["v1:" + line.upper() for line in LINES]
    assert client.translate([]) == []
    (candidates,) = client.n_best(["abc"])
    assert candidates == [
        Candidate("v1:ABC", pytest.approx(-0.3)),
        Candidate("v1:ABC?", pytest.approx(-1.6)),
    ]
    assert client.score(["abc", "a", "ab"], ["a", "a", ""]) == [-2.0, 0.0, -2.0]
    with pytest.raises(ValueError, match="2 sources but 1 targets"):
        client.score(["a", "b"], ["a"])
    with pytest.raises(TranslationError, match="a row says FAIL"):
        client.translate(["FAIL"])


def test_versions_and_names(live_server):
    right = TranslationClient(live_server.url, "toy", version=1)
    right.wait_until_ready(5)
    assert right.translate(["a"]) == ["v1:A"]
    wrong = TranslationClient(live_server.url, "toy", version=8)
    with pytest.raises(TranslationError, match="not found") as caught:
        wrong.translate(["a"])
    assert caught.value.status == 404
    with pytest.raises(UserError, match="no server's address"):
        TranslationClient("ftp://somewhere", "toy")


def test_a_refused_connection_is_tried_again_and_then_an_error():
    lonely = TranslationClient(f"http://127.0.0.1:{free_port()}", "toy", retries=2, backoff=0.01)
    with pytest.raises(TranslationError, match="no answer from"):
        lonely.translate(["a"])
    with pytest.raises(TranslationError, match="not ready after"):
        lonely.wait_until_ready(0.2)


class BusyServer(http.server.BaseHTTPRequestHandler):
    """Says 503 twice, then answers."""

    count = 0

    def do_POST(self):
        type(self).count += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = self.count <= 2
        body = {"error": "busy"} if busy else {"outputs": [-1.5]}
        data = json.dumps(body).encode()
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def test_a_busy_server_is_asked_again():
    with http.server.HTTPServer(("127.0.0.1", 0), BusyServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert TranslationClient(url, "toy", backoff=0.01).score(["a"], ["b"]) == [-1.5]
        server.shutdown()
    assert BusyServer.count == 3


def test_the_command_translates_arguments_and_standard_input(live_server, monkeypatch, capsys):
    flags = ["--url", live_server.url, "--name", "toy"]
    assert command.main([*flags, "a", "b"]) == 0
    assert capsys.readouterr().out == "v1:A\nv1:B\n"
    # Only a newline ends a line; bad bytes are replaced, and said.
    given = "c\n\nd\re\u2028f\r\n".encode() + b"g\xffh"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert command.main([*flags, "--batch-size", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "v1:C\nv1:\nv1:D\rE\u2028F\nv1:G\ufffdH\n"
    assert printed.err == "warning: line 4 is not UTF-8: bad bytes replaced\n"
    assert command.main([*flags, "--n-best", "a"]) == 0
    assert capsys.readouterr().out == "0 ||| v1:A ||| -0.1000\n0 ||| v1:A? ||| -1.2000\n"
    grpc_flags = ["--grpc", f"127.0.0.1:{live_server.grpc_port}", "--name", "toy"]
    assert command.main([*grpc_flags, "a"]) == 0
    assert capsys.readouterr().out == "v1:A\n"
    assert command.main(["--url", live_server.url, "--name", "other", "a"]) == 2
    assert capsys.readouterr().err.startswith("error: Servable not found for request")
