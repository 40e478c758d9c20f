"""Loaded model versions and their signatures."""

import functools
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import prediction_log_pb2

from export.server.errors import invalid
from macaron_tf.engines.exported import ExportedModel
from macaron_tf.engines.warm_up import WARMUP_REQUESTS, typical_inputs
from macaron_tf.errors import first_line
from macaron_tf.io.serving import as_json

DEFAULT_SIGNATURE = "serving_default"
_LOG = logging.getLogger(__name__)


def _tensor_spec(info: meta_graph_pb2.TensorInfo) -> tf.TensorSpec:
    """Returns the shape, the dtype and the tensor name of one input or output of a signature."""
    return tf.TensorSpec(tf.TensorShape(info.tensor_shape), info.dtype, info.name)


class Signature:
    """Named function of a SavedModel.

    Args:
        name: name of the signature, such as `serving_default`.
        signature_def: the signature in the SavedModel.

    Attributes:
        inputs: dict mapping input name to `tf.TensorSpec`, sorted by name.
        outputs: dict mapping output name to `tf.TensorSpec`, sorted by name.
        batchable: whether requests may be joined along axis 0. The initial value is true if the
            signature has inputs and the first dimension of every input and output has no fixed
            size. The batcher sets the value to False if a run of several joined requests does not
            return one output row for each input row.
        waits: whether a request waits for further requests to join its batch. The value is False if
            LiteRT answers small requests for this signature.
    """

    def __init__(self, name: str, signature_def: meta_graph_pb2.SignatureDef):
        self.name = name
        self.inputs = {k: _tensor_spec(v) for k, v in sorted(signature_def.inputs.items())}
        self.outputs = {k: _tensor_spec(v) for k, v in sorted(signature_def.outputs.items())}
        self.waits = True
        shapes = [spec.shape for spec in (*self.inputs.values(), *self.outputs.values())]
        self.batchable = bool(self.inputs) and all(
            shape.rank is None or (shape.rank > 0 and shape[0] is None) for shape in shapes
        )

    def check(self, inputs: dict[str, np.ndarray], max_rows: int) -> int:
        """Checks the inputs of a request.

        Args:
            inputs: dict mapping input name to array.
            max_rows: maximum number of rows in a request for a batchable signature.

        Returns:
            The number of rows, or 1 if the signature is not batchable or an input is a scalar.

        Raises:
            ServingError: INVALID_ARGUMENT if the names, dtypes, shapes or row counts are wrong.
        """
        if inputs.keys() != self.inputs.keys():
            extra = ", ".join(sorted(inputs.keys() - self.inputs.keys()))
            missing = ", ".join(sorted(self.inputs.keys() - inputs.keys()))
            mend = [f"leave out {extra}"] * bool(extra) + [f"add {missing}"] * bool(missing)
            raise invalid(
                f"the inputs do not match the signature {self.name!r}: {' and '.join(mend)}"
            )
        for name, array in inputs.items():
            spec = self.inputs[name]
            if array.dtype != spec.dtype.as_numpy_dtype:
                dtype = "string" if array.dtype == np.object_ else array.dtype.name
                raise invalid(
                    f"input {name!r} has dtype {dtype}, but must have dtype {spec.dtype.name}"
                )
            if not spec.shape.is_compatible_with(array.shape):
                raise invalid(
                    f"input {name!r} has shape {_format_shape(array.shape)}, but must have shape "
                    f"{_format_shape(spec.shape)}"
                )
        if not self.batchable or any(array.ndim == 0 for array in inputs.values()):
            return 1
        rows = {array.shape[0] for array in inputs.values()}
        if len(rows) > 1:
            sizes = ", ".join(f"{k}: {v.shape[0]}" for k, v in inputs.items())
            raise invalid(
                f"the inputs have different numbers of rows ({sizes}): send equal numbers of rows"
            )
        count = rows.pop()
        if count == 0:
            raise invalid("the batch is empty: send at least one row")
        if count > max_rows:
            raise invalid(f"the request has {count} rows: send at most {max_rows}")
        return count


class Servable:
    """Loaded model version.

    Args:
        path: folder of the version.
        version: number of the version.

    Raises:
        Exception: the SavedModel is missing or damaged. TensorFlow's exception can have any class.
    """

    def __init__(self, path: str, version: int):
        self.path = path
        self.version = version
        self._model = ExportedModel(path)
        self.signature_defs = self._model.signature_defs
        self._signatures = {
            name: Signature(name, signature)
            for name, signature in self.signature_defs.items()
            if signature.method_name  # "__saved_model_init_op" has no method name
        }
        if self._model.small_engine is not None:
            self._signatures[DEFAULT_SIGNATURE].waits = False
        if self._model.warning is not None:
            _LOG.warning("LiteRT is not used for small requests: %s", self._model.warning)

    def signature(self, name: str = "") -> Signature:
        """Returns the signature `name`. An empty name means `serving_default`.

        Raises:
            ServingError: INVALID_ARGUMENT if there is no such signature.
        """
        name = name or DEFAULT_SIGNATURE
        if name not in self._signatures:
            names = ", ".join(sorted(self._signatures))
            raise invalid(
                f'Serving signature name: "{name}" not found in signature def; it has: {names}'
            )
        return self._signatures[name]

    def run(self, signature: Signature, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature, and returns a dict mapping output name to array.

        This method is thread-safe.
        """
        return self._model.run(signature.name, inputs)

    def warm_up(self) -> None:
        """Runs example requests, so that graph optimization does not delay the first real request.

        The requests are read from TensorFlow Serving's file for warm-up requests in the version
        folder, `assets.extra/tf_serving_warmup_requests`. If there is no such file, each signature
        gets one row of typical values. Errors are only logged, because a model may reject typical
        values.
        """
        try:
            for signature, inputs in self._typical_requests():
                try:
                    self.run(signature, inputs)
                except tf.errors.OpError as error:
                    _LOG.info("warm-up of %r: %s", signature.name, first_line(error))
        except Exception as error:  # if the request file is damaged, the model still works
            _LOG.warning("warm-up of version %d failed: %s", self.version, error)

    def _typical_requests(self) -> Iterator[tuple[Signature, dict[str, np.ndarray]]]:
        path = pathlib.Path(self.path, WARMUP_REQUESTS)
        if not path.is_file():
            for signature in self._signatures.values():
                yield signature, typical_inputs(signature.inputs)
            return
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            signature = self.signature(request.model_spec.signature_name)
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            signature.check(inputs, max_rows=1 << 30)
            yield signature, inputs

    @functools.cached_property
    def example(self) -> dict[str, Any]:
        """Inputs of an example request to `serving_default`: dict mapping input name to JSON value.

        If the signature is batchable, a value is one row without the batch dimension.

        Raises:
            ServingError: INVALID_ARGUMENT if there is no signature `serving_default`.
        """
        signature = self.signature()
        try:
            requests = self._typical_requests()
            inputs = next(inputs for requested, inputs in requests if requested is signature)
        except Exception:  # there is no recorded request, or the file is damaged
            inputs = typical_inputs(signature.inputs)
        values = {name: as_json(name, array) for name, array in sorted(inputs.items())}
        return {k: v[0] for k, v in values.items()} if signature.batchable else values

    def close(self) -> None:
        """Frees the model. No thread may be running `run`."""
        self._model.close()


def _format_shape(shape: Sequence[int | None] | tf.TensorShape) -> str:
    if tf.TensorShape(shape).rank is None:
        return "[?]"
    return "[" + ",".join("-1" if size is None else str(size) for size in shape) + "]"
