"""A toy model with the signatures of an exported translator, and clients for tests."""

import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys

import tensorflow as tf

from export.server.config import ServerConfig
from export.server.model_server import ModelServer

WORDS = tf.TensorSpec([None], tf.string)


class ToyTranslator(tf.Module):
    """A toy translator, which returns its version number followed by the text in upper case.

    A batch with the row "FAIL" fails as a whole, as in a real graph.
    """

    def __init__(self, version: int):
        super().__init__()
        self.tag = tf.Variable(f"v{version}:")

    @tf.function(input_signature=[WORDS])
    def translate(self, text):
        bad = tf.reduce_any(tf.equal(text, "FAIL"))
        with tf.control_dependencies([tf.debugging.assert_equal(bad, False, "a row says FAIL")]):
            best = tf.strings.join([self.tag, tf.strings.upper(text, encoding="utf-8")])
        length = tf.cast(tf.strings.length(text), tf.float32)
        return {
            "translations": tf.stack([best, tf.strings.join([best, "?"])], 1),  # `(B, 2)`
            "scores": tf.stack([-0.1 * length, -0.2 * length - 1.0], 1),  # `(B, 2)`
        }

    @tf.function(input_signature=[WORDS, WORDS])
    def score(self, source, target):
        difference = tf.strings.length(source) - tf.strings.length(target)
        return {"log_probs": -tf.cast(tf.abs(difference), tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def slow(self, steps):
        limit = tf.reduce_max(steps)
        count = tf.while_loop(lambda i: i < limit, lambda i: [i + 1], [0])[0]
        return {"count": steps * 0 + count}


def export_toy(folder: pathlib.Path, version: int) -> None:
    """Writes a version of the toy model into `folder`."""
    toy = ToyTranslator(version)
    signatures = {"serving_default": toy.translate, "score": toy.score, "slow": toy.slow}
    tf.saved_model.save(toy, str(folder / str(version)), signatures=signatures)


def toy_server(folder, **settings) -> ModelServer:
    """Returns a server, not yet started, of the versions of the toy model in a folder."""
    return ModelServer(ServerConfig(str(folder), "toy", port=0, **settings))


def http_client(port: int):
    """Returns a context manager of an HTTP connection to a local server."""
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60))


def call(port: int, method: str, path: str, body=None) -> tuple[int, dict]:
    """Sends an HTTP request on a new connection; returns (status, JSON response).

    Args:
        port: port of a local server.
        method: HTTP method.
        path: path of the URL.
        body: bytes to send unchanged, or a value to send as JSON.
    """
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    with http_client(port) as connection:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def raw_exchange(port: int, data: bytes) -> bytes:
    """Sends bytes, and returns what the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


READER = """
import json, sys
import tensorflow as tf, tensorflow_text

def given(values):
    if any(not isinstance(value, str) for value in values):
        return tf.constant(values)
    return tf.constant([value.encode("utf-8", "surrogateescape") for value in values], tf.string)

def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value

models, answers = {}, []
for place, signature, inputs in json.load(sys.stdin):
    if place not in models:
        models[place] = tf.saved_model.load(place)
    try:
        out = models[place].signatures[signature](**{k: given(v) for k, v in inputs.items()})
        answers.append({name: plain(value.numpy().tolist()) for name, value in out.items()})
    except tf.errors.InvalidArgumentError as error:
        answers.append({"error": error.message})
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump(answers, sys.stdout)
"""


def ask_elsewhere(cwd, *asked: tuple[str, str, dict[str, list]]) -> list[dict]:
    """Runs signatures in a process that does not import this project.

    Args:
        cwd: a folder outside the checkout.
        asked: (version folder, signature, inputs) of each call. An unpaired surrogate stands for an
            invalid byte.

    Returns:
        A dict for each call, which maps output names to values. If the call raises an
        InvalidArgumentError, "error" maps to the message.
    """
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
