"""Tests of `macaron serve` as a process: readiness, errors and shutdown."""

import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from tests.harness import refuses

PREDICT = "/v1/models/toy:predict"


@pytest.fixture
def process(model_folder):
    """Yields a server as a process, and its port; the grace is 3 s."""
    words = ["-m", "macaron_tf", "serve", str(model_folder), "--port", "0", "--grace-seconds", "3"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            ready = started.stdout.readline() + started.stdout.readline()
            match = re.fullmatch(  # scripts take the last word of the first line: the address
                r"ready: toy version 1 on http://127.0.0.1:(\d+)\n"
                r"try:   curl -d '\{\"instances\": \[\"A dog is running.\"\]\}' "
                r"http://127.0.0.1:\1/v1/models/toy:predict\n",
                ready,
            )
            assert match, ready + started.stderr.read()
            yield started, int(match[1])
        finally:
            started.kill()


def begin(port: int, steps: int) -> http.client.HTTPConnection:
    """Sends a request that takes `steps` steps of a loop in the graph."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", PREDICT, json.dumps({"signature_name": "slow", "inputs": [steps]}))
    time.sleep(0.3)  # the server has begun to compute it
    return connection


def test_a_process_finishes_what_it_began_after_sigterm(process):
    server, port = process
    connection = begin(port, 100_000)
    server.send_signal(signal.SIGTERM)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == (200, {"outputs": [100_000]})
    assert server.wait(10) == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
def test_a_process_ends_within_its_grace_whatever_runs(process):
    """A request that computes for minutes, one whose body stops, and an idle connection."""
    server, port = process
    computing = begin(port, 2**31 - 1)
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode()
    stuck, idle = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
    stuck.sendall(head)
    start = time.monotonic()
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0 and time.monotonic() - start < 4
    assert "requests did not end within 3 s" in server.stderr.read()
    for connection in (computing, stuck, idle):
        connection.close()


def test_the_example_is_a_command_of_the_shell(live_server, monkeypatch):
    example = {"instances": ["a dog's $HOME"]}
    monkeypatch.setattr(live_server.versions.current, "example", example)
    *command, url = shlex.split(live_server.example())
    assert command[:2] == ["curl", "-d"]
    assert json.loads(command[2]) == example
    assert url == f"{live_server.url}{PREDICT}"


def test_what_cannot_be_served_is_one_sentence(model_folder, tmp_path):
    folder = str(model_folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for place, settings, words in (
            (f"{tmp_path}/missing", {}, "it has no file such as 1/saved_model.pb"),
            (f"{folder}/1", {}, "it has no file such as 1/saved_model.pb"),
            (folder, {"host": "300.1.1.1"}, "of '300.1.1.1' cannot be opened"),
            (folder, {"port": port}, f"port {port} of '127.0.0.1' cannot be opened"),
        ):
            refuses(words, ModelServer(ServerConfig(place, "toy", **settings)).start)
    refuses("cannot be part of a URL", ServerConfig, folder, "a/b")
    refuses("port=70000 must be a whole number of at", ServerConfig, folder, "toy", port=70_000)
