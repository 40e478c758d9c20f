"""Tests of warm-up, by this server and by the file for TensorFlow Serving."""

import numpy as np
import pytest
import tensorflow as tf

from export.server.servable import Servable
from macaron_tf.engines import warm_up
from macaron_tf.tasks.base import require


def test_each_signature_gets_a_made_up_row(model_folder, monkeypatch):
    runs, original = [], Servable.run

    def run(self, signature, inputs):
        runs.append((signature, {name: array.tolist() for name, array in inputs.items()}))
        return original(self, signature, inputs)

    monkeypatch.setattr(Servable, "run", run)
    servable = Servable(model_folder / "1", 1)
    servable.warm_up()
    assert ("serving_default", {"text": [b"A dog is running."]}) in runs
    assert ("scalar", {"x": 0.0}) in runs
    assert len(runs) == 6


def test_a_request_is_encoded_as_by_tensorflow_serving_api():
    """The bytes are those of tensorflow-serving-api 2.20."""
    expected = "322e0a2c0a111a0f73657276696e675f64656661756c74"
    expected += "12170a0474657874120f080712041202080142054120646f67"
    inputs = {"text": np.array([b"A dog"], object)}
    assert warm_up._prediction_log("serving_default", inputs).hex() == expected
    assert warm_up._field(2, b"a" * 300)[:3].hex() == "12ac02"


@pytest.mark.parametrize("name, count", [("serving_default", 1), ("strict", 0)])
def test_an_export_leaves_out_requests_that_a_signature_refuses(tmp_path, caplog, name, count):
    """TensorFlow Serving would not load a model with a recorded request that fails."""

    def strict(text):
        return {"y": require(tf.strings.length(text) < 9, "too long", text)}

    known = {"serving_default": lambda text: {"y": text}, "strict": strict}
    spec = tf.TensorSpec([None], tf.string, "text")
    warm_up.write_warm_up(tmp_path, {name: tf.function(known[name]).get_concrete_function(spec)})
    files = list(tmp_path.glob(warm_up.WARMUP_REQUESTS))
    assert len(files) == count and ("because too long" in caplog.text) == (count == 0)
    for record in tf.data.TFRecordDataset([*map(str, files)]):
        assert b"A dog is running." in record.numpy()
