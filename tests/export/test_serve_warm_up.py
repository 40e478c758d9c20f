"""Tests of warm-up requests, and of the operations that a server must have registered."""

import importlib.util
import pathlib
import sys

import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow_serving.apis import prediction_log_pb2

from export.server import servable as servable_module
from export.server.servable import Servable
from macaron_tf.engines import warm_up
from macaron_tf.tasks.base import require


@pytest.fixture
def runs(monkeypatch):
    """Returns a list to which each later model call appends (signature name, inputs)."""
    seen = []
    original = Servable.run

    def run(self, signature, inputs):
        seen.append((signature.name, {name: array.tolist() for name, array in inputs.items()}))
        return original(self, signature, inputs)

    monkeypatch.setattr(servable_module.Servable, "run", run)
    return seen


def test_each_signature_gets_a_made_up_row(model_folder, runs):
    servable = Servable(str(model_folder / "1"), 1)
    servable.warm_up()
    servable.close()
    assert ("serving_default", {"text": [b"A dog is running."]}) in runs
    assert ("scalar", {"x": 0.0}) in runs
    assert len(runs) == 6


@pytest.mark.parametrize(
    "text, expected", [("recorded", 1), ("FAIL", 1), (None, 0), (b"no message", 0)]
)
def test_recorded_requests_are_replayed(model_folder, runs, text, expected):
    """Warm-up replays recorded requests; a failing request or a damaged file raises no error."""
    path = model_folder / "1" / servable_module.WARMUP_REQUESTS
    path.parent.mkdir()
    if text is None:
        path.write_bytes(b"no records")
    else:
        log = prediction_log_pb2.PredictionLog()
        request = log.predict_log.request
        request.inputs["text"].CopyFrom(tf.make_tensor_proto([text]))
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(log.SerializeToString() if isinstance(text, str) else text)
    servable = Servable(str(model_folder / "1"), 1)
    servable.warm_up()
    servable.close()
    assert runs == [("serving_default", {"text": [str(text).encode()]})] * expected


def test_an_export_records_a_request_of_each_signature(tmp_path, runs, caplog, monkeypatch):
    """An export records one request per signature, except requests that the signature refuses.

    TensorFlow Serving would not load a model with a recorded request that fails.
    """

    def strict(text, max_tokens):
        return {"y": require(tf.strings.length(text) < 9, "too long", max_tokens)}

    def functions(*names):
        specs = (
            tf.TensorSpec([None], tf.string, "text"),
            tf.TensorSpec([None], tf.int32, "max_tokens"),
        )
        known = {"serving_default": lambda text, max_tokens: {"y": text}, "strict": strict}
        return {name: tf.function(known[name]).get_concrete_function(*specs) for name in names}

    module, found = tf.Module(), functions("serving_default", "strict")
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=found)
    warm_up.write_warm_up(tmp_path / "1", found)
    servable = Servable(str(tmp_path / "1"), 1)
    servable.warm_up()
    servable.close()
    inputs = {"max_tokens": [20], "text": [b"A dog is running."]}
    assert [(name, dict(sorted(given.items()))) for name, given in runs] == [
        ("serving_default", inputs)
    ]

    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    warm_up.write_warm_up(tmp_path / "2", found)
    assert "tensorflow-serving-api" in caplog.text and not (tmp_path / "2").exists()


def test_check_ops_finds_what_is_not_tensorflows_own(model_folder, tmp_path, monkeypatch, capsys):
    path = pathlib.Path(servable_module.__file__).parents[1] / "deploy" / "check_ops.py"
    spec = importlib.util.spec_from_file_location("check_ops", path)
    check_ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_ops)
    assert check_ops.ops_outside_core(str(model_folder / "1")) == {}

    module = tf.Module()
    signature = [tf.TensorSpec([None], tf.string)]
    module.fold = tf.function(tensorflow_text.case_fold_utf8, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path / "folding"))
    assert list(check_ops.ops_outside_core(str(tmp_path / "folding"))) == ["CaseFoldUTF8"]

    monkeypatch.setattr(sys, "argv", ["check_ops.py", str(tmp_path / "folding")])
    for damage in (b"damaged", b"", None):
        file = tmp_path / "folding" / "saved_model.pb"
        file.write_bytes(damage) if damage is not None else file.unlink()
        assert check_ops.main() == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {tmp_path}/folding has no readable saved_model.pb (")
        assert error.count("\n") == 1
