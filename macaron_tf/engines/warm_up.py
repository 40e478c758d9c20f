"""Typical requests to a model, which servers use for warm-up and show as examples."""

import itertools
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.command_names import install_command
from macaron_tf.io.serving import CONTROLS, EXAMPLE, EXAMPLE_QUESTION, failed_check

# File in a version's folder from which TensorFlow Serving replays requests.
WARMUP_REQUESTS = os.path.join("assets.extra", "tf_serving_warmup_requests")
_LOG = logging.getLogger(__name__)


def write_warm_up(
    folder: pathlib.Path,
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    texts: Sequence[str] = (EXAMPLE,),
) -> None:
    """Writes a TFRecord file of `PredictionLog` with warm-up requests for each signature.

    TensorFlow Serving does not load a version if a warm-up request fails. So this function tries
    each request, and leaves out a request that the model rejects, with a warning. If the model
    rejects all requests, the function writes no file.

    `PredictionLog` is defined in the package tensorflow-serving-api. Without this package, the
    function writes nothing and logs a warning. The server of this project does not need the file.

    Args:
        folder: folder of the version.
        functions: dict mapping signature name to concrete function. The `TensorSpec` of each input
            must have a name.
        texts: texts for which to request predictions. Each signature gets one request per text.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        _LOG.warning(
            "no warm-up requests for TensorFlow Serving were written, because the package "
            f"tensorflow-serving-api is missing: {install_command('serving')}"
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
            _LOG.warning("the warm-up requests leave out the text %r, because %s", text, sentence)
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
    """Returns a dict mapping input name to an array with a typical value, for one row.

    The value of a text input is `text`. The input `question` gets an example question instead.
    """
    texts = {"question": EXAMPLE_QUESTION}
    return {name: typical(name, spec, texts.get(name, text)) for name, spec in specs.items()}


def typical(name: str, spec: tf.TensorSpec, text: str) -> np.ndarray:
    """Returns an array with a typical value of an input.

    The array contains `text` for a string input, 20 for `max_tokens`, the default from `CONTROLS`
    for an input such as `temperature`, and otherwise zeros. Dimensions of unknown size become 1.
    """
    shape = [1 if size is None else size for size in (spec.shape if spec.shape.rank else ())]
    if spec.dtype == tf.string:
        return np.full(shape, text.encode(), dtype=np.object_)
    value = {**CONTROLS, "max_tokens": 20}.get(name, 0)
    return np.full(shape, value, dtype=spec.dtype.as_numpy_dtype)
