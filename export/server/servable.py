"""Loaded model versions and their signatures."""

import functools
import itertools
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from export.server.errors import ServingError
from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.lite_texts import LiteTexts
from macaron_tf.engines.session import SessionModel
from macaron_tf.engines.warm_up import typical_inputs
from macaron_tf.errors import UserError, first_line
from macaron_tf.io.paths import read_json
from macaron_tf.io.serving import EXAMPLE, EXTRA, RECORD, as_json

DEFAULT_SIGNATURE = "serving_default"
_LOG = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


class Signature:
    """Named function of a SavedModel.

    Attributes:
        inputs: dict mapping input name to `tf.TensorSpec`, sorted by name.
        batchable: whether requests may be joined along axis 0. The initial value is true if the
            signature has inputs and the first dimension of every input and output has no fixed
            size. The batcher sets the value to False if a run of several joined requests does not
            return one output row for each input row.
        waits: whether a request waits for further requests to join its batch. The value is False if
            LiteRT answers small requests for this signature.
    """

    def __init__(self, name: str, definition: meta_graph_pb2.SignatureDef):
        self.name = name
        self.waits = True
        self.inputs = {
            key: tf.TensorSpec(tf.TensorShape(info.tensor_shape), info.dtype, info.name)
            for key, info in sorted(definition.inputs.items())
        }
        outputs = [tf.TensorShape(info.tensor_shape) for info in definition.outputs.values()]
        self.batchable = bool(self.inputs) and all(
            shape.rank is None or (shape.rank > 0 and shape[0] is None)
            for shape in [*outputs, *(spec.shape for spec in self.inputs.values())]
        )

    def count_rows(self, inputs: Arrays, max_rows: int) -> int:
        """Checks the shapes of a request's inputs, and returns the number of rows.

        A request counts as 1 row if the signature is not batchable or an input is a scalar.
        """
        for name, array in inputs.items():
            if not self.inputs[name].shape.is_compatible_with(array.shape):
                shape = self.inputs[name].shape
                raise ServingError(400, f"input {name!r} has shape {array.shape}, not {shape}")
        if not self.batchable or any(array.ndim == 0 for array in inputs.values()):
            return 1
        rows = {name: len(array) for name, array in inputs.items()}
        count = min(rows.values())
        if count != max(rows.values()):
            raise ServingError(400, f"the inputs have different numbers of rows: {rows}")
        if not 0 < count <= max_rows:
            raise ServingError(400, f"the request has {count} rows: send 1 to {max_rows} rows")
        return count


class Servable:
    """Loaded model version, which answers small requests in LiteRT if it has a LiteRT file.

    The constructor raises an exception of any class if the SavedModel is missing or damaged.

    Attributes:
        small_engine: LiteRT engine for small requests to `serving_default`. `None` means that the
            version has no LiteRT file, that the file cannot be opened, or that LiteRT was not
            faster than the SavedModel at the export.
        texts: LiteRT engine that can stream the answers of a text-generating task, or `None`.
    """

    def __init__(self, path: pathlib.Path, version: int):
        self.version, self._model = version, SessionModel(path)
        self.signature_defs = self._model.signature_defs
        self._signatures = {
            name: Signature(name, definition)
            for name, definition in self.signature_defs.items()
            if definition.method_name  # "__saved_model_init_op" has no method name
        }
        self.texts: LiteTexts | None = None
        engine: LiteModel | LiteTexts | None = None
        extra = path / EXTRA
        try:
            if (extra / NETWORK).is_file():
                engine = LiteModel(LiteNetwork(extra), self._model)
            elif (extra / DECODER).is_file():
                engine = self.texts = LiteTexts.from_folder(extra)
        except UserError as error:
            _LOG.warning("LiteRT is not used for small requests: %s", error)
        self.small_engine = engine if engine and engine.lite.max_rows else None
        if self.small_engine is not None:
            self._signatures[DEFAULT_SIGNATURE].waits = False
        record = extra / RECORD
        facts = read_json(record, mend="export the model again") if record.is_file() else {}
        self._texts = facts.get("examples", [EXAMPLE])

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Runs a signature; see `SessionModel.run`."""
        small = self.small_engine if signature == DEFAULT_SIGNATURE else None
        outputs = small.answer(inputs) if small else None
        return self._model.run(signature, inputs) if outputs is None else outputs

    def signature(self, name: Any = "") -> Signature:
        """Returns the signature `name`. An empty name means `serving_default`."""
        if not isinstance(name, str) or (name or DEFAULT_SIGNATURE) not in self._signatures:
            names = ", ".join(sorted(self._signatures))
            raise ServingError(400, f"signature_name is not a signature: choose one of {names}")
        return self._signatures[name or DEFAULT_SIGNATURE]

    def stream(self, inputs: Arrays) -> Iterator[str]:
        """Yields the text of `serving_default` for a request with one row, in parts."""
        if self.texts is None:
            raise ServingError(501, "this version has no streams: export with --lite fp32")
        return self.texts.stream(inputs)

    def warm_up(self) -> None:
        """Runs each signature on typical texts, because graph optimization delays the first run.

        Errors are only logged, because a model may reject typical values.
        """
        for signature, text in itertools.product(self._signatures.values(), self._texts):
            try:
                self.run(signature.name, typical_inputs(signature.inputs, text))
            except tf.errors.OpError as error:
                _LOG.info("warm-up of %r: %s", signature.name, first_line(error))

    @functools.cached_property
    def example(self) -> dict[str, Any]:
        """Body of an example request to `serving_default`, or {} without a batchable one."""
        signature = self._signatures.get(DEFAULT_SIGNATURE)
        if signature is None or not signature.batchable:
            return {}
        inputs = typical_inputs(signature.inputs, self._texts[0])
        row = {name: as_json(name, array)[0] for name, array in inputs.items()}
        return {"instances": [row if len(row) > 1 else next(iter(row.values()))]}
