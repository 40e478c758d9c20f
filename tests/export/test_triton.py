"""Tests of exported models in NVIDIA Triton: model configuration, and answers of a server."""

import concurrent.futures
import http.client
import importlib.util
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.lab.benchmarks import serving
from export import keras_model, triton
from export.server.servable import Servable
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.harness import refuses

OPTIONS = {"max_batch_size": 8, "batch_delay_us": 5000, "versions": 1}


def options(*signatures: str, **more) -> types.SimpleNamespace:
    return types.SimpleNamespace(**OPTIONS | {"signatures": signatures} | more)


def test_the_repository(tmp_path, toy_versions):
    chosen = options("serving_default", "numbers", "scalar", versions=2)
    names = triton.write_repository({"toy": str(toy_versions)}, tmp_path, chosen)
    assert names == ["toy", "toy.numbers", "toy.scalar"]
    files = sorted(path.relative_to(tmp_path / "toy").as_posix() for path in tmp_path.glob("toy/*"))
    assert files == ["1", "2", "config.pbtxt"]
    numbers = (tmp_path / "toy.numbers" / "config.pbtxt").read_text()
    assert "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 5000 }" in numbers
    assert 'input { name: "ints" data_type: TYPE_INT32 dims: [3] }' in numbers
    assert 'input { name: "flags" data_type: TYPE_BOOL dims: [1] reshape {} }' in numbers
    assert 'output { name: "half" data_type: TYPE_FP16 dims: [1] reshape {} }' in numbers
    scalar = (tmp_path / "toy.scalar" / "config.pbtxt").read_text()
    assert "max_batch_size: 0" in scalar
    assert "batching" not in scalar


def test_mistakes_are_one_sentence(tmp_path, toy_versions, refused):
    known = "motto, numbers, scalar, score, serving_default"
    sentence = f"--signatures contains 'no', but no model has this signature: choose from {known}"
    refuses(sentence, triton.write_repository, {"a": str(toy_versions)}, tmp_path, options("no"))
    refused(triton.main, [f"{tmp_path}/nothing"], "nothing is not a folder")
    twice = [f"{toy_versions}", f"{toy_versions.name}={toy_versions}"]
    refused(triton.main, twice, f"two models are named '{toy_versions.name}'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag in ("--http-port", "--grpc-port"):
            ports = ["--http-port", str(free_port()), flag, port]
            refused(triton.main, [f"{toy_versions}", *ports], f"{flag} {port} cannot be opened on")
    (tmp_path / "cut" / "1").mkdir(parents=True)
    folders = {"cut": f"{tmp_path}/cut"}
    for damaged in (b"\xff\xff", b""):
        (tmp_path / "cut" / "1" / "saved_model.pb").write_bytes(damaged)
        write = triton.write_repository
        refuses(r"saved_model.pb is damaged", write, folders, tmp_path, options("a"))


def test_a_bad_row_costs_the_requests_joined_with_it_one_run(monkeypatch):
    """Requests that share a batch with a bad row are answered after one more run.

    A fake module replaces `triton_python_backend_utils`, which exists only in Triton's processes.
    """
    stub = types.SimpleNamespace(
        Tensor=lambda name, array: (name, array.tolist()),
        InferenceResponse=lambda tensors=None, error=None: tensors or error,
        TritonError=lambda message, code: (message, code),
    )
    stub.TritonError.INVALID_ARG, stub.TritonError.INTERNAL = "INVALID_ARG", "INTERNAL"
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    model, calls = importlib.import_module("export.triton_model").TritonPythonModel(), []

    def run(signature, inputs):
        calls.append(len(inputs["x"]))
        if bad := [str(row) for row, x in enumerate(inputs["x"]) if x < 0]:
            message = f"assertion failed: [below 0] [rows:] [{' '.join(bad)}]"
            raise tf.errors.InvalidArgumentError(None, None, message)
        return {"y": 2 * inputs["x"]}

    model._signature = types.SimpleNamespace(batchable=True, check=lambda inputs, most: 1)
    model._servable, model._max_rows = types.SimpleNamespace(run=run), 8
    inputs = [
        types.SimpleNamespace(name=lambda: "x", as_numpy=lambda x=x: np.array([x]))
        for x in (1, 2, -3, 4, 5)
    ]
    answers = model.execute([types.SimpleNamespace(inputs=lambda x=x: [x]) for x in inputs])
    assert calls == [5, 4, 1]
    assert answers.pop(2) == ("below 0", "INVALID_ARG")
    assert answers == [[("y", [2 * x])] for x in (1, 2, 4, 5)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port: int, model: str, outputs=(), **inputs: np.ndarray) -> tuple[int, dict]:
    """Sends KServe's `infer` for some or all outputs; returns (status, JSON response)."""
    types_ = {"O": "BYTES", "i": "INT32", "f": "FP32", "b": "BOOL"}
    tensors = [
        {"name": name, "shape": array.shape, "datatype": types_[array.dtype.kind],
         "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]  # fmt: skip
    body = {"inputs": tensors} | ({"outputs": [{"name": n} for n in outputs]} if outputs else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def arrays(answer: dict) -> dict[str, np.ndarray]:
    return {x["name"]: np.reshape(x["data"], x["shape"]) for x in answer["outputs"]}


@pytest.fixture(scope="module")
def installed():
    """Skips the test if Triton is not installed."""
    if importlib.util.find_spec("pytriton") is None:
        pytest.skip("needs nvidia-pytriton: make test-engines")


@pytest.fixture(scope="module")
def server(tmp_path_factory, toy_versions, installed):
    """Yields the (HTTP, gRPC) ports of a Triton server; asserts that it stops at SIGTERM."""
    ports, folder = (free_port(), free_port()), tmp_path_factory.mktemp("served")
    shutil.copytree(toy_versions, folder / "toy")
    log = folder / "log.txt"
    words = [str(folder / "toy"), "--http-port", str(ports[0]), "--grpc-port", str(ports[1])]
    words += ["--versions", "2", "--signatures", "serving_default", "numbers"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "export.triton", *words],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        ready = process.stdout.readline()
        assert re.match(rf"ready: toy, toy.numbers on http://127.0.0.1:{ports[0]} ", ready), (
            log.read_text()[-3000:]
        )
        yield ports
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def column(*texts: str) -> np.ndarray:
    return np.array(texts, dtype=object)[:, None]


@pytest.mark.slow
def test_answers_are_the_models(server, toy_versions):
    texts = ["a dog", "größe", ""]
    for model, version in (("toy", 2), ("toy/versions/1", 1)):
        servable = Servable(str(toy_versions / str(version)), version)
        inputs = {"text": np.array([text.encode() for text in texts], dtype=object)}
        ours = servable.run(servable.signature(), inputs)
        servable.close()
        status, answer = ask(server[0], model, text=column(*texts))
        assert status == 200
        theirs = arrays(answer)
        assert (
            theirs["translations"].tolist()
            == np.char.decode(ours["translations"].astype(bytes), "utf-8").tolist()
        )
        np.testing.assert_array_equal(theirs["scores"].astype(np.float32), ours["scores"])
    ints, flags = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([[True], [False]])
    floats, images = np.array([[1.0], [3.0]], np.float32), column("a", "")
    asked = {"ints": ints, "flags": flags, "floats": floats, "image_bytes": images}
    # JSON has neither half precision nor bytes outside UTF-8.
    status, answer = ask(server[0], "toy.numbers", outputs=("total", "flipped"), **asked)
    assert (status, arrays(answer)["total"].tolist()) == (200, [[4], [12]])
    assert arrays(answer)["flipped"].tolist() == [[False], [True]]


@pytest.mark.slow
def test_concurrent_requests_are_joined_and_a_bad_one_fails_alone(server):
    texts = [f"text {number}" for number in range(40)]
    texts[7] = "FAIL"
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: ask(server[0], "toy", text=column(text)), texts))
    for text, (status, answer) in zip(texts, answers, strict=True):
        if text == "FAIL":
            assert (status, answer["error"]) == (400, "a row says FAIL")
        else:
            assert arrays(answer)["translations"].tolist() == [
                [f"v2:{text.upper()}", f"v2:{text.upper()}?"]
            ]
    connection = http.client.HTTPConnection("127.0.0.1", server[0], timeout=60)
    connection.request("GET", "/v2/models/toy/stats")
    [one, two] = json.loads(connection.getresponse().read())["model_stats"]
    counted = one if one["version"] == "2" else two
    assert counted["execution_count"] < counted["inference_count"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        ("toy", {"words": column("a")}, "unexpected inference input 'words' for model 'toy'"),
        ("toy", {"text": np.array(["a"], object)}, "unexpected shape for input 'text'"),
        (
            "toy",
            {"text": np.ones((1, 1), np.float32)},
            "inference input 'text' data-type is 'FP32'",
        ),
        ("toy", {"text": column(*"abcdefghijklmnopqrstuvwxyz" * 2)}, "batch-size must be <= 32"),
        ("toy/versions/9", {"text": column("a")}, "version 9 is not at ready state|not found"),
        ("none", {"text": column("a")}, "unknown model: 'none' is not found|unknown model"),
    ],
)
def test_wrong_requests_are_one_sentence(server, model, inputs, sentence):
    status, answer = ask(server[0], model, **inputs)
    assert status in (400, 404)
    assert re.search(sentence, answer["error"])
    assert "\n" not in answer["error"]


@pytest.mark.slow
def test_grpc(server):
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{server[1]}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=30) == b"\x08\x01"  # live = true


def test_the_server_is_found_or_named(monkeypatch):
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    refuses("Triton is not installed in this environment: run `make engines`", triton.find_server)
    spec = types.SimpleNamespace(origin=str(pathlib.Path("/nowhere/pytriton/__init__.py")))
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: spec)
    refuses("the installed Triton does not support Python", triton.find_server)


@pytest.mark.slow
def test_the_benchmark_of_servers_compares_answers_and_times_both(tmp_path, installed):
    keras.utils.set_random_seed(1)
    vocabulary = WordPieceVocabulary.train(serving.made_up_lines(50, 8, seed=1), 100)
    network = EncoderClassifier(EncoderConfig(vocabulary.size, 16, 48, 2, 1), 2)
    network.build()
    network.save(tmp_path / "model.keras")
    vocabulary.save(tmp_path)
    places = [tmp_path / "model.keras", tmp_path, tmp_path / "served"]
    words = ["--labels", "no", "yes", "--max-length", "128"]
    assert keras_model.main([*map(str, places), *words]) == 0
    given = ["--servers", str(places[-1]), "--rounds", "1", "--warm-up", "1", "--rows", "2"]
    options = serving.command.parse_args([*given, "--batch-sizes", "2", "--clients", "2"])
    tables = dict(serving.server_tables(options))
    assert [*tables] == ["batch 2, 1 client", "batch 2, 2 clients"]
    for rows in tables.values():
        assert [row["name"] for row in rows] == ["export.serve", "NVIDIA Triton"]
        assert all(row["latency_ms"]["p50"] > 0 for row in rows)
