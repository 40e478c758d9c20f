"""Tests of `macaron serve` as a process: readiness, errors and shutdown."""

import contextlib
import gc
import http.client
import json
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from google.protobuf import text_format

from export import serve
from export.server.servable import Servable
from macaron_tf.cli.program import exit_on_user_error
from tests.export.serving_toys import export_toy


def test_a_process_serves_until_sigterm_and_finishes_what_it_began(model_folder):
    # At its end, the child prints the project's modules that it loaded: errors and settings, but no
    # model code.
    code = (
        "import gc, sys; from export.serve import main; status = main(sys.argv[1:]);"
        "assert gc.get_freeze_count() > 100_000;"  # TensorFlow's objects are frozen
        "print(sorted(m for m in sys.modules if m.startswith('macaron_tf'))); sys.exit(status)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(model_folder), "--rest-port", "0", "--grpc-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ready = process.stdout.readline()
        pattern = (
            r"ready: toy version 1 on http://127.0.0.1:(\d+) \(gRPC 127.0.0.1:\d+\); "
            r"try: curl -d '\{\"instances\": \[\"A dog is running.\"\]\}' "
            r"http://127.0.0.1:\1/v1/models/toy:predict\n"
        )
        match = re.fullmatch(pattern, ready)
        assert match, ready + process.stderr.read()
        port = int(match[1])
        body = b'{"signature_name": "slow", "inputs": [2000]}'
        head = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: toy\r\nExpect: 100-continue\r\n"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
            # The request has begun, and finishes after the server stops accepting others.
            assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(ConnectionError):
                while True:
                    socket.create_connection(("127.0.0.1", port)).close()
                    time.sleep(0.02)
            connection.sendall(body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, json.loads(answer.read())) == (200, {"outputs": [2000]})
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        parts = ("", ".cli", ".cli.arguments", ".cli.program", ".command_names", ".engines")
        parts += (".engines.exported", ".engines.lite", ".engines.session", ".engines.warm_up")
        parts += (".errors", ".io", ".io.paths", ".io.serving", ".plug_ins")
        parts += (".settings",)
        assert output == f"{[f'macaron_tf{part}' for part in parts]}\n"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port))
    finally:
        process.kill()
        process.wait()


def test_a_model_without_the_default_signature_has_no_example(tmp_path, capsys):
    """The line "ready" has an example request only if the model has `serving_default`."""
    export_toy(tmp_path, 1, {"motto": "motto"})
    stop = threading.Event()
    stop.set()
    try:
        flags = ["--rest-port", "0", "--grpc-port", "0"]
        serve.run(serve.parse_arguments([str(tmp_path), "--name", "toy", *flags]), stop)
    finally:
        gc.unfreeze()
    assert re.fullmatch(r"ready: toy version 1 on \S+ \(gRPC \S+\)\n", capsys.readouterr().out)


def test_the_example_is_a_command_of_the_shell(live_server, monkeypatch):
    monkeypatch.setattr(Servable, "example", {"text": "a dog's $HOME"})
    *command, url = shlex.split(live_server.example())
    assert command[:2] == ["curl", "-d"] and json.loads(command[2])["instances"] == [
        "a dog's $HOME"
    ]
    assert url == f"{live_server.url}/v1/models/toy:predict"


@exit_on_user_error
def run(arguments):
    """Runs the command without its signal handlers."""
    try:
        serve.run(serve.parse_arguments(arguments), None)
    finally:
        gc.unfreeze()  # this process is not only the server's


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_port_in_use_is_one_sentence(model_folder, taken_port, kind, capfd):
    other = "grpc" if kind == "rest" else "rest"
    flags = [f"--{kind}-port", str(taken_port), f"--{other}-port", "0"]
    assert run([str(model_folder), *flags]) == 2
    message = capfd.readouterr().err.strip().splitlines()[-1]
    assert re.fullmatch(
        rf"error: the \w+ port {taken_port} cannot be opened .*--{kind}-port", message
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["{}/missing"], "is not a folder"),
        (["{}"], "contains no version of a model"),
        (["gs://bucket/served"], "gs://bucket/served is a URL, but"),
        (["{}/toy/1"], "is the folder of a single model version"),
        (["{}/toy", "--host", "300.1.1.1"], "--host '300.1.1.1' is not an address of this"),
        (["{}/toy", "--host", "192.0.2.1"], "--host '192.0.2.1' is not an address of this"),
        (["{}/toy", "--host", "a" * 70], "is not an address of this machine"),
        (["{}/toy", "--name", "a/b"], "cannot be part of a URL"),
        (["{}/toy", "--rest-port", "70000"], "--rest-port=70000 must be a whole number of at"),
        (["{}/toy", "--poll-seconds", "0"], "--poll-seconds=0 must be a number above 0"),
        (["{}/toy", "--batch-timeout-ms", "-1"], "--batch-timeout-ms=-1 must be a number"),
        (["{}/toy", "--workers", "x"], "--workers='x' must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_one_sentence(tmp_path, model_folder, arguments, words, refused):
    refused(run, [text.format(tmp_path) for text in arguments], words, tmp_path)


def test_an_unknown_flag_is_refused_with_a_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        serve.parse_arguments(["out", "--speed", "9"])
    assert caught.value.code == 2
    assert "usage: macaron serve" in capsys.readouterr().err


def test_the_deployment_files_are_what_the_container_reads():
    from tensorflow_serving.config import model_server_config_pb2

    folder = pathlib.Path(serve.__file__).parent / "deploy"
    config = text_format.Parse(
        (folder / "models.config").read_text(), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = config.model_config_list.config
    assert model.model_platform == "tensorflow" and model.base_path == f"/models/{model.name}"
    fields = re.findall(
        r"^(\w+) \{ value: \d+ \}$", (folder / "batching_parameters.txt").read_text(), re.M
    )
    assert {"max_batch_size", "batch_timeout_micros", "num_batch_threads"} <= set(fields)
