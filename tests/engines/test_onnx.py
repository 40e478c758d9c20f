"""Tests of networks exported to ONNX, and run in ONNX Runtime and in OpenVINO."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from export.saved_model import main
from macaron_tf import models
from macaron_tf.engines.networks import OnnxNetwork, OpenVinoNetwork, TaskNetwork, write_network
from macaron_tf.tasks import LabelledSettings
from macaron_tf.tasks.base import OnePass
from tests.harness import float32_sum_error, numpy_of, refuses
from tests.toys.pretrained import BYTES, PAIR, WORDS, loaded

LINES = ("a b c d e f", "", "f a", "c c \u6f22 e a b d")


def classifier(model: str, kind=models.EncoderClassifier, vocabulary=WORDS):
    settings = LabelledSettings(task=PAIR, limits={"max_length": 16})
    return dataclasses.replace(loaded(kind, model, vocabulary, 2), settings=settings)


SYSTEMS = {
    "swish_rnn": lambda: classifier("swish_rnn_tiny"),
    "macaron": lambda: classifier("macaron_bert_tiny"),
    "bert_rab": lambda: classifier("bert_rab_tiny"),  # with a position bias
    "gpt": lambda: classifier("gpt2_tiny", models.CausalClassifier, BYTES),
}


@pytest.fixture(scope="module")
def onnx():
    pytest.importorskip("tf2onnx")
    return pytest.importorskip("onnxruntime")


def noisy(model) -> OnePass:
    """Adds large noise to a model's weights, so that outputs depend on inputs.

    Returns the model's task.
    """
    for weight in model.network.trainable_weights:
        weight.assign_add(keras.random.normal(weight.shape, stddev=0.2, seed=len(weight.path)))
    return model.task


def check_equal(task: OnePass, opened) -> None:
    """Checks that an opened model and the network have equal outputs for several batch sizes."""
    texts = [LINES[i:] + LINES[:i] for i in range(len(task.texts))]
    for part in (slice(0, 1), slice(1, 3), slice(0, 4)):
        rows, _ = task.prepare(*(tf.constant(column[part]) for column in texts))
        expected = task.compute(rows).numpy()
        found = opened.compute({name: ids.numpy() for name, ids in rows.items()})
        assert found.dtype == np.float32
        # Most sums have 128 terms.
        bound = float32_sum_error(128) * max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", SYSTEMS)
def test_onnx_runtime_computes_what_the_network_does(name, onnx, tmp_path):
    task = noisy(SYSTEMS[name]())
    write_network(TaskNetwork(task), tmp_path, "onnx")
    check_equal(task, OnnxNetwork(tmp_path))


def test_kerass_own_export_of_a_model_is_opened_at_every_length(onnx, tmp_path):
    model = macaron_tf.build("swish_rnn_tiny", vocab_size=20)
    model(np.ones((1, 4), "int32"))
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", verbose=False)
    session = onnx.InferenceSession(path)
    for length in (1, 6, 7):
        ids = np.random.default_rng(1).integers(5, 20, (2, length)).astype("int32")
        found = session.run(None, {session.get_inputs()[0].name: ids})[0]
        np.testing.assert_allclose(found, numpy_of(model(ids)), atol=1e-5)


def test_a_file_that_no_runtime_opens_is_refused(onnx, tmp_path):
    class Digamma(models.Encoder):
        def call(self, inputs, training=None):
            return tf.math.digamma(super().call(inputs, training=training))

    model = Digamma(models.catalog.config("bert_tiny", vocab_size=20))
    model(np.ones((1, 4), "int32"))
    words = "tf2onnx failed"
    refuses(words, model.export, str(tmp_path / "model.onnx"), "onnx", verbose=False)
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_both_beside_the_saved_model(onnx, tmp_path):
    pytest.importorskip("openvino")
    model = SYSTEMS["macaron"]()
    task = noisy(model)
    model.save_pretrained(tmp_path / "saved")
    words = [str(tmp_path / "saved"), str(tmp_path / "served"), "--onnx", "--openvino"]
    assert main(words) == 0
    version = tmp_path / "served" / "1"
    for opened in (OnnxNetwork(version), OpenVinoNetwork(version)):
        check_equal(task, opened)
    answers = tf.saved_model.load(str(version)).signatures["serving_default"](
        **{name: tf.constant(["a b"]) for name in task.texts}
    )
    expected = model.predict([("a b", "a b")])[0]["probabilities"]
    np.testing.assert_allclose(answers["probabilities"][0], expected, atol=1e-6)


@pytest.mark.parametrize("flag", ["--onnx", "--openvino"])
def test_what_writes_token_by_token_and_int8_are_refused(flag, onnx, tmp_path, refused):
    pytest.importorskip("openvino")
    writer = loaded(models.LanguageModel, "gpt2_tiny", BYTES)
    writer.save_pretrained(tmp_path / "writer")
    small = SYSTEMS["macaron"]()
    small.network.quantize("int8")
    small.save_pretrained(tmp_path / "int8")
    for name, words in (("writer", "decodes token by token"), ("int8", "is quantized to int8")):
        refused(main, [tmp_path / name, tmp_path / "out", flag], words, tmp_path / name)
        assert not [*(tmp_path / "out").iterdir()]
