"""A sentence encoder and its SavedModel give the same vectors, also where we are not installed."""

import json
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from experiments.embed.run import open_encoder
from export.saved_model import main
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from macaron_tf.evaluation.similarity import unit_vectors
from tests.experiments.task_toys import sentences, train_embedding, write_embedding_toy

READER = """
import json, sys
import tensorflow as tf, tensorflow_text
place, lines = json.load(sys.stdin)
serve = tf.saved_model.load(place).signatures["serving_default"]
answer = {"vector": serve(text=tf.constant(lines))["vector"].numpy().tolist()}
try:
    serve(text=tf.constant([b"fun", b"caf\\xe9"]))
except tf.errors.InvalidArgumentError as error:
    answer["error"] = error.message
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump(answer, sys.stdout)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose recurrence runs natively here."""
    folder = tmp_path_factory.mktemp("embedder")
    write_embedding_toy(folder)
    train_embedding(folder, folder / "run", model="swish_rnn_tiny", training__max_steps=4)
    assert main([str(folder / "run"), str(folder / "served")]) == 0
    return folder


def test_a_fresh_process_gives_the_same_unit_vectors(folder, tmp_path):
    lines = [text for text, _ in sentences(50, seed=5)]
    lines += ["", "film " * 100, "\ufeffFUN\u2028plöt \ufffd", "a\x00b"]
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps([str(folder / "served" / "1"), lines]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    encoder, _ = open_encoder(str(folder / "run"))
    np.testing.assert_allclose(answer["vector"], unit_vectors(encoder.encode(lines)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(answer["vector"], axis=1), 1, atol=1e-5)
    assert "a text is not UTF-8" in answer["error"]


def test_it_is_served_as_lists_of_numbers(folder):
    config = ServerConfig(str(folder / "served"), "embedder", rest_port=0, grpc_port=0)
    lines = ["the film was great", "dull"]
    with ModelServer(config) as server:
        request = urllib.request.Request(
            f"{server.url}/v1/models/embedder:predict",
            json.dumps({"instances": lines}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            predictions = json.load(answer)["predictions"]
    encoder, _ = open_encoder(str(folder / "run"))
    np.testing.assert_allclose(predictions, unit_vectors(encoder.encode(lines)), atol=1e-5)


def test_what_is_exported_is_on_record(folder):
    record = json.loads((folder / "served" / "1" / "assets.extra" / "export.json").read_text())
    assert record["pooling"] == "mean" and record["checkpoint"].startswith("step-")
    assert record["max_length"] == 16


def test_what_only_a_translator_does_is_refused(folder, tmp_path, capsys):
    assert main([str(folder / "run"), str(tmp_path / "out"), "--n-best", "2"]) == 2
    assert "--n-best" in capsys.readouterr().err


def test_a_directory_has_no_checkpoints(tmp_path, capsys):
    assert main(["hugging-face:DIR", str(tmp_path / "out"), "--checkpoint", "best"]) == 2
    assert "has one set of weights" in capsys.readouterr().err
