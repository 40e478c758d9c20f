"""Loaded model versions and their signatures."""

import functools
import itertools
import logging
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from export.server.errors import ServingError
from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.lite_texts import LiteTexts
from macaron_tf.engines.session import STEPS, SessionModel, typical_inputs
from macaron_tf.errors import UserError, first_line
from macaron_tf.io.paths import read_json
from macaron_tf.io.serving import EXAMPLE, EXTRA, RECORD, as_rows

DEFAULT_SIGNATURE = "serving_default"
_LOG = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]


class Servable:
    """Loaded model version, which answers small requests in LiteRT if it has a LiteRT file.

    The constructor raises an exception of any class if the SavedModel is missing or damaged.

    Attributes:
        inputs: dict mapping signature name to the dtype of each input, a column `(B,)`. Every
            output of an export has one row for each input row.
        small_engine: LiteRT engine for small requests to `serving_default`. `None` means that the
            version has no LiteRT file, that the file cannot be opened, or that LiteRT was not
            faster than the SavedModel at the export.
        texts: LiteRT engine that can stream the answers of a text-generating task, or `None`.
    """

    def __init__(self, path: pathlib.Path, version: int):
        self.version, self._model = version, SessionModel(path)
        self.signature_defs = self._model.signature_defs
        self.inputs: dict[str, Mapping[str, tf.DType]] = {
            name: {key: tf.as_dtype(item.dtype) for key, item in sorted(definition.inputs.items())}
            for name, definition in self.signature_defs.items()
            # "__saved_model_init_op" has no method name.
            if definition.method_name and name not in STEPS
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
        record = extra / RECORD
        facts = read_json(record, mend="export the model again") if record.is_file() else {}
        self._texts = facts.get("examples", [EXAMPLE])

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Runs a signature; see `SessionModel.run`."""
        small = self.small_engine if signature == DEFAULT_SIGNATURE else None
        outputs = small.answer(inputs) if small else None
        return self._model.run(signature, inputs) if outputs is None else outputs

    def waits(self, signature: str) -> bool:
        """Returns whether a request waits for others to fill its batch, which LiteRT needs not."""
        return self.small_engine is None or signature != DEFAULT_SIGNATURE

    def stream(self, inputs: Arrays) -> Iterator[str]:
        """Yields the text of `serving_default` for a request with one row, in parts."""
        if self.texts is None:
            raise ServingError(501, "this version has no streams: export with --lite fp32")
        return self.texts.stream(inputs)

    def warm_up(self) -> None:
        """Runs each signature on typical texts, because graph optimization delays the first run.

        Errors are only logged, because a model may reject typical values.
        """
        for signature, text in itertools.product(self.inputs, self._texts):
            try:
                self.run(signature, typical_inputs(self.inputs[signature], text))
            except tf.errors.OpError as error:
                _LOG.info("warm-up of %r: %s", signature, first_line(error))

    @functools.cached_property
    def example(self) -> dict[str, Any]:
        """Body of an example request to `serving_default`."""
        return {
            "instances": as_rows(typical_inputs(self.inputs[DEFAULT_SIGNATURE], self._texts[0]))
        }
