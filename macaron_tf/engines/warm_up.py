"""Typical requests to a model, which servers use for warm-up and show as examples."""

import itertools
import logging
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.io.serving import CONTROLS, EXAMPLE, EXAMPLE_TEXTS, EXTRA, failed_check

# File in a version's folder from which TensorFlow Serving replays requests.
WARMUP_REQUESTS = f"{EXTRA}/tf_serving_warmup_requests"
_LOG = logging.getLogger(__name__)


def write_warm_up(
    folder: pathlib.Path,
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    texts: Sequence[str] = (EXAMPLE,),
) -> None:
    """Writes a TFRecord file of `PredictionLog` with warm-up requests for each signature.

    TensorFlow Serving does not load a version if one fails, so requests that the model rejects are
    left out, with a warning. The `TensorSpec` of each input must have a name.
    """
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
        logs.append(_prediction_log(name, inputs))
    if logs:
        (folder / EXTRA).mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(folder / WARMUP_REQUESTS)) as writer:
            for log in logs:
                writer.write(log)


def _prediction_log(signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encodes TensorFlow Serving's `PredictionLog`, of the package tensorflow-serving-api.

    Field numbers: `PredictionLog.predict_log` 6, `PredictLog.request` 1,
    `PredictRequest.model_spec` 1 and `inputs` 2, which is a map, `ModelSpec.signature_name` 3.
    """
    request = _field(1, _field(3, signature.encode()))
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value).SerializeToString()
        request += _field(2, _field(1, name.encode()) + _field(2, tensor))
    return _field(6, _field(1, request))


def _field(number: int, value: bytes) -> bytes:
    """Encodes a field of a protocol buffer: its number, 1 to 15, and bytes or a message."""
    size, head = len(value), bytes([number << 3 | 2])
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + value


def typical_inputs(
    specs: Mapping[str, tf.TensorSpec], text: str = EXAMPLE, **texts: str
) -> dict[str, np.ndarray]:
    """Returns an array with a typical value for each input, with 1 for unknown dimensions.

    A string input is the one of `texts` or of `EXAMPLE_TEXTS` with its name, or else `text`. Any
    other input is 20 for `max_tokens`, the default in `CONTROLS`, or else 0.
    """
    texts = EXAMPLE_TEXTS | texts
    numbers, arrays = {**CONTROLS, "max_tokens": 20}, {}
    for name, spec in specs.items():
        shape = [1 if size is None else size for size in (spec.shape if spec.shape.rank else ())]
        is_text = spec.dtype == tf.string
        value = texts.get(name, text).encode() if is_text else numbers.get(name, 0)
        arrays[name] = np.full(shape, value, spec.dtype.as_numpy_dtype)
    return arrays
