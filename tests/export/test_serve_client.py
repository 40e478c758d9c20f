"""Tests of the REST and gRPC clients, with and without a running server."""

import concurrent.futures
import contextlib
import functools
import http.server
import io
import json
import socket
import threading

import numpy as np
import pytest

from export import base_client
from export import client as command
from export.base_client import Candidate, ClientError, Signature
from export.client import GrpcClient, RestClient
from export.local_client import LocalClient
from tests.export.serving_toys import count_calls, export_toy
from tests.harness import refuses

LINES = ["a dog", "größe", "", "x" * 3000, "two\twords"]


@pytest.fixture(params=["rest", "grpc"])
def connect(request, live_server):
    """Returns a function that makes a REST client or a gRPC client of the live server.

    Tests with this fixture run once for each of the two clients.
    """
    if request.param == "rest":
        return functools.partial(RestClient, live_server.url, "toy")
    return functools.partial(GrpcClient, f"127.0.0.1:{live_server.grpc_port}", "toy")


def candidates(line: str) -> list[Candidate]:
    """Returns the two translations that the toy model gives for a line."""
    best, length = f"v1:{line.upper()}", len(line)
    second = Candidate(f"{best}?", pytest.approx(-0.2 * length - 1))
    return [Candidate(best, pytest.approx(-0.1 * length)), second]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_translate_n_best_and_score(connect):
    client = connect(batch_size=2)
    assert client.translate(LINES) == ["v1:" + line.upper() for line in LINES]
    assert client.translate([]) == []
    assert client.n_best(["abc"]) == [candidates("abc")]
    assert client.score(["abc", "a", "ab"], ["a", "a", ""]) == [-2.0, 0.0, -2.0]
    with pytest.raises(ValueError, match="there are 2 sources but 1 targets"):
        client.score(["a", "b"], ["a"])
    with pytest.raises(ClientError, match="a row says FAIL"):
        client.translate(["FAIL"])
    client.close()


def test_32_concurrent_clients_each_get_their_own_answers(connect, monkeypatch):
    calls = count_calls(monkeypatch)

    def converse(number: int) -> None:
        client = connect()
        for i in range(8):
            lines = [f"c{number} r{i} w{k}" for k in range(1 + i % 3)]
            if number % 8 == 0 and i % 4 == 0:
                with pytest.raises(ClientError, match="FAIL"):
                    client.n_best([*lines, "FAIL"])
            else:
                assert client.n_best(lines) == [candidates(line) for line in lines]
        client.close()

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(converse, range(32)))
    assert len(calls) < 32 * 8  # some were merged


@pytest.mark.parametrize("lines", [["ab"], ["ab", "c"]])
def test_an_output_without_a_row_for_each_line_is_one_sentence(connect, monkeypatch, lines):
    """A client raises an error if an output, here a scalar string, has no row for each line."""
    monkeypatch.setattr(base_client, "_SIGNATURE", "motto")
    client = connect()
    with pytest.raises(
        ClientError, match="the model's output 'motto' does not have one row per line"
    ):
        client.answers(lines)
    client.close()


def test_a_signature_that_the_model_lacks_is_one_sentence(tmp_path):
    """The error names the signature that a method needs, and the model's signatures."""
    folder = export_toy(tmp_path, 1, {"motto": "motto", "other": "translate"})
    with contextlib.closing(LocalClient(str(folder))) as client:
        for method, name in (
            (lambda: client.score(["a"], ["b"]), "score"),
            (lambda: client.n_best(["a"]), "serving_default"),
            (lambda: client.answers(["a"]), "serving_default"),
        ):
            words = rf"has no signature '{name}' \(its signatures: motto, other\): export "
            with pytest.raises(ClientError, match=words):
                method()
    client = LocalClient(str(export_toy(tmp_path, 2, {"score": "pair"})))
    with pytest.raises(ClientError, match=r"no output 'log_probs' \(its outputs: joined\)"):
        client.score(["a"], ["b"])
    client.close()


def test_versions_and_names(connect, live_server):
    assert connect(version=1).translate(["a"]) == ["v1:A"]
    with pytest.raises(ClientError, match="not found") as caught:
        connect(version=8).translate(["a"])
    assert caught.value.status in (404, "NOT_FOUND")
    RestClient(live_server.url, "toy", version=1).wait_until_ready(5)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://somewhere",
        "http://a:99999",
        "http://a:b",
        "http://[::1",
        "http://a..b",
        "ho st:80",
        "http://a?model=b",
        "http://user@a",
        "",
    ],
)
def test_what_is_no_address_is_one_sentence(address, capsys):
    assert command.main(["--url", address, "a"]) == 2
    assert "is not the HTTP address of a server: write http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "host_and_port"),
    [
        ("http://[::1]", ("::1", 80)),
        ("https://[fe80::abcd]:8501", ("fe80::abcd", 8501)),
        ("my_service", ("my_service", 80)),
        ("https://b\u00fccher.example/", ("b\u00fccher.example", 443)),
    ],
)
def test_an_address_is_a_host_and_a_port(address, host_and_port):
    connection = RestClient(address, "toy")._connection
    assert (connection.host, connection.port) == host_and_port


def test_texts_of_a_line_are_in_the_order_of_the_commands():
    def texts(*names):
        return Signature(dict.fromkeys(names, "DT_STRING"), {}).texts

    choices = [f"choice{number}" for number in range(1, 12)]
    assert texts(*sorted(["question", *choices, "context"])) == ["context", "question", *choices]
    assert texts("context", "question") == ["question", "context"]
    assert texts("b", "second", "a", "first") == ["first", "second", "a", "b"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("max_tokens=1.5", "not a 32-bit integer: give a whole number from -2147483648 to"),
        ("max_tokens=true", "not a 32-bit integer: give a whole number from -2147483648 to"),
        ("max_tokens=99999999999", "not a 32-bit integer: give a whole number from -2147483648 to"),
        ('max_tokens={"a": 1}', "not a 32-bit integer: give a whole number"),
        ("temperature=1e60", "not a number in the range of DT_FLOAT: give a number from -3.4"),
        ("temperature=NaN", "not a number in the range of DT_FLOAT: give a number from -3.4"),
    ],
)
def test_an_input_is_a_number_of_its_type(given, words):
    name, _, value = given.partition("=")
    inputs = {"text": "DT_STRING", "max_tokens": "DT_INT32", "temperature": "DT_FLOAT"}
    ask = Signature(inputs, {}).columns
    refuses(f"{name}=.* is {words}", ask, ["a"], {name: json.loads(value)}, 1)
    found = ask(["a"], {"max_tokens": np.int64(2**31 - 1), "temperature": np.float32(2)}, 1)
    assert found == {"text": ["a"], "max_tokens": [2**31 - 1], "temperature": [2.0]}


@contextlib.contextmanager
def answering(data: bytes, paths: list[str] | None = None):
    """Serves `data` for each request and yields the URL. `paths` gets the requested paths."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if paths is not None:
                paths.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_path_in_the_address_is_the_prefix_of_all_requests():
    paths, state = [], {"state": "AVAILABLE"}
    data = json.dumps({"model_version_status": [state], "outputs": [-1.5]}).encode()
    with answering(data, paths) as url:
        client = RestClient(f"{url}/the models/a%20b/", "toy", version=1)
        client.wait_until_ready(5)
        assert client.score(["a"], ["b"]) == [-1.5]
        client.close()
    prefix = "/the%20models/a%20b/v1/models/toy/versions/1"
    assert paths == [prefix, f"{prefix}:predict"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{}", "a response that is not in TensorFlow Serving's format"),
        (b'{"metadata": null}', "a response that is not in TensorFlow Serving's format"),
        (
            b'{"metadata": {"signature_def": {}}}',
            "a response that is not in TensorFlow Serving's format",
        ),
        (b'{"metadata": [1]}', "a response that is not in TensorFlow Serving's format"),
        (b"[" * 100_000, "[[[' (HTTP status 200) is not a JSON object: check"),
    ],
)
def test_another_server_is_one_sentence(data, words, capsys):
    with answering(data) as url:
        assert command.main(["--url", url.removeprefix("http://"), "a"]) == 2
    assert words in capsys.readouterr().err


def test_other_answers_are_one_sentence():
    data = {"model_version_status": [{}], "outputs": {"translations": 1, "scores": 2, "": 3}}
    with answering(json.dumps(data).encode()) as url:
        client = RestClient(url, "toy")
        for method, arguments in (
            (client.wait_until_ready, [0.1]),
            (client.n_best, [["a"]]),
            (client.score, [["a"], ["b"]]),
        ):
            with pytest.raises(ClientError, match="not in TensorFlow Serving's format"):
                method(*arguments)
        client.close()


@pytest.mark.parametrize("flag", ["--url", "--grpc"])
def test_a_refused_line_is_named_and_those_before_it_are_answered(flag, live_server, capsys):
    place = live_server.url if flag == "--url" else f"127.0.0.1:{live_server.grpc_port}"
    lines = [flag, place, "--name", "toy", "--batch-size", "2", "a", "b", "c", "FAIL", "d"]
    assert command.main(lines) == 2
    printed = capsys.readouterr()
    assert printed.out == "v1:A\nv1:B\nv1:C\n"
    assert printed.err.startswith("error: line 4: ") and "a row says FAIL" in printed.err


def test_a_refused_connection_is_tried_again_and_then_an_error():
    lonely = RestClient(f"http://127.0.0.1:{free_port()}", "toy", retries=2, backoff=0.01)
    with pytest.raises(ClientError, match="did not answer"):
        lonely.translate(["a"])
    with pytest.raises(ClientError, match="not ready after"):
        lonely.wait_until_ready(0.2)


class BusyServer(http.server.BaseHTTPRequestHandler):
    """A server that returns 503 for two requests, first with an HTML page, and then answers."""

    count = 0

    def do_POST(self):
        type(self).count += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = self.count <= 2
        body = {"error": "busy"} if busy else {"outputs": [-1.5]}
        data = json.dumps(body).encode() if self.count != 1 else b"<html>"
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
        assert RestClient(url, "toy", backoff=0.01).score(["a"], ["b"]) == [-1.5]
        server.shutdown()
    assert BusyServer.count == 3


def test_the_command_translates_arguments_and_standard_input(live_server, monkeypatch, capsys):
    flags = ["--url", live_server.url, "--name", "toy"]
    assert command.main([*flags, "a", "b"]) == 0
    assert capsys.readouterr().out == "v1:A\nv1:B\n"
    # Only a newline ends a line. Invalid bytes are replaced with a warning.
    given = "c\n\nd\re\u2028f\r\n".encode() + b"g\xffh"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert command.main([*flags, "--batch-size", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "v1:C\nv1:\nv1:D\rE\u2028F\nv1:G\ufffdH\n"
    assert printed.err == "warning: line 4 is not UTF-8: invalid bytes are replaced by U+FFFD\n"
    assert command.main([*flags, "--n-best", "a"]) == 0
    assert capsys.readouterr().out == "0 ||| v1:A ||| -0.1000\n0 ||| v1:A? ||| -1.2000\n"
    grpc_flags = ["--grpc", f"127.0.0.1:{live_server.grpc_port}", "--name", "toy"]
    assert command.main([*grpc_flags, "a"]) == 0
    assert capsys.readouterr().out == "v1:A\n"
    assert command.main(["--url", live_server.url, "--name", "other", "a"]) == 2
    assert capsys.readouterr().err.startswith("error: Servable not found for request")


def test_a_dead_grpc_address_is_named(capsys):
    address = f"127.0.0.1:{free_port()}"
    assert command.main(["--grpc", address, "--timeout", "1", "a"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        (f"error: {address} is unavailable", f"error: {address} did not answer")
    )


@pytest.mark.parametrize("value", ["", "a", "[" * 5000], ids=len)
def test_an_input_that_is_no_number_is_one_sentence(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--input", f"x={value}", "a"])
    assert capsys.readouterr().err.endswith(": write NAME=NUMBER\n")


@pytest.mark.parametrize("flag", ["--version", "--timeout", "--batch-size"])
@pytest.mark.parametrize("value", ["99999999999999999999", "-1", "nan"])
def test_numbers_out_of_range_are_refused(flag, value, capsys):
    assert command.main(["--grpc", "127.0.0.1:1", flag, value, "a"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {flag} {value} is not valid: give a ")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"translations": ["a", "b"], "scores": [0.0, -1.0]}, "a"),
        ({"label": "x", "probabilities": [0.25, 0.75]}, "x\t0=0.2500\t1=0.7500"),
        ({"score": 1.5}, "1.5000"),
        ({"vector": [0.5, -1e-9]}, "0.5 -1e-09"),
        ({"completion": "one\ntwo", "tokens": 2}, "one\\ntwo"),
        ({"words": ["a"], "vectors": [[1.0]]}, '{"words": ["a"], "vectors": [[1.0]]}'),
    ],
)
def test_an_answer_is_text_by_its_outputs(answer, text):
    assert command.format_answer(answer) == text
