"""Makes typical requests to a model, for a server's example and for a version's warm-up."""

import itertools
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.io.serving import CONTROLS, EXAMPLE, EXAMPLE_QUESTION, failed_check

# The file in a version's folder from which TensorFlow Serving replays requests.
WARMUP_REQUESTS = os.path.join("assets.extra", "tf_serving_warmup_requests")
_LOG = logging.getLogger(__name__)


def write_warm_up(
    folder: pathlib.Path,
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    texts: Sequence[str] = (EXAMPLE,),
) -> None:
    """Writes warm-up requests of each signature, as a TFRecord file of `PredictionLog`.

    TensorFlow Serving does not load a version if a warm-up request fails, so each is tried here
    first. A request that the model does not accept is left out with a warning. Without the package
    tensorflow-serving-api, which defines `PredictionLog`, nothing is written and a warning is
    logged; this project's server then warms up with typical rows of its own.

    Args:
        folder: folder of the version.
        functions: concrete functions by signature name; the `TensorSpec` of each input has a name.
        texts: texts to request; each signature gets a request for each.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        _LOG.warning(
            "no warm-up requests for TensorFlow Serving were written: they need "
            "tensorflow-serving-api (pip install 'macaron_tf[serving]')"
        )
        return
    logs = []
    for (name, function), text in itertools.product(functions.items(), texts):
        specs = tf.nest.flatten(function.structured_input_signature)
        inputs = typical_inputs({spec.name: spec for spec in specs}, text)
        try:
            function(*map(tf.constant, inputs.values()))
        except tf.errors.InvalidArgumentError as error:
            if (sentence := failed_check(error.message)) is None:
                raise
            _LOG.warning("no warm-up request has the text %r: %s", text, sentence)
            continue
        logs.append(log := prediction_log_pb2.PredictionLog())
        log.predict_log.request.model_spec.signature_name = name
        for key, value in inputs.items():
            log.predict_log.request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    if logs:
        path = folder / WARMUP_REQUESTS
        path.parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for log in logs:
                writer.write(log.SerializeToString())


def typical_inputs(specs: Mapping[str, tf.TensorSpec], text: str = EXAMPLE) -> dict:
    """Makes a row of typical values, by input name; `text` is used for all texts but a question."""
    texts = {"question": EXAMPLE_QUESTION}
    return {name: typical(name, spec, texts.get(name, text)) for name, spec in specs.items()}


def typical(name: str, spec: tf.TensorSpec, text: str) -> np.ndarray:
    """Makes a typical value of an input: the text, one of `CONTROLS`, or zeros.

    Dimensions of unknown size become 1.
    """
    shape = [1 if size is None else size for size in (spec.shape if spec.shape.rank else ())]
    if spec.dtype == tf.string:
        return np.full(shape, text.encode(), dtype=np.object_)
    value = {**CONTROLS, "max_tokens": 20}.get(name, 0)
    return np.full(shape, value, dtype=spec.dtype.as_numpy_dtype)
