"""Client that runs an exported model in this process."""

import dataclasses
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from export.base_client import Client, ClientError, missing_signature
from macaron_tf.engines.exported import ExportedModel, find_version
from macaron_tf.errors import UserError, first_line
from macaron_tf.io.serving import as_json, cause_of


@dataclasses.dataclass(eq=False)
class LocalClient(Client):
    """Client that runs an exported model in this process, without a server.

    The client is thread-safe. `address` is the model's folder, or the folder of one version if
    `version` is `None`. The client ignores `name` and `timeout`. If the model was exported with
    `--lite`, LiteRT can answer small requests (see `ExportedModel`).

    Raises:
        UserError: `address` contains no such version, or the version cannot be loaded.
    """

    name: str = ""

    def __post_init__(self):
        path = find_version(self.address, self.version)
        try:
            self._model = ExportedModel(path)
        except Exception as error:  # TensorFlow raises exceptions of any class, see `ExportedModel`
            raise UserError(
                f"{path} cannot be loaded ({first_line(error, cause_of(error)):.200}): export the "
                "model again, with the installed version of TensorFlow"
            ) from error
        if self._model.warning is not None:
            print(f"warning: LiteRT is not used: {self._model.warning}", file=sys.stderr)

    def close(self) -> None:
        """Frees the model."""
        self._model.close()

    def _metadata(self) -> dict[str, Any]:
        signatures = {
            name: json_format.MessageToDict(definition, preserving_proto_field_name=True)
            for name, definition in self._model.signature_defs.items()
        }
        return {"signature_def": signatures}

    def _run(self, signature: str, inputs: dict[str, list]) -> dict[str, list]:
        if signature not in self._model.signature_defs:
            raise missing_signature(signature, self._model.signature_defs)
        definition = self._model.signature_defs[signature]
        arrays = {
            name: np.array(
                [value.encode() if isinstance(value, str) else value for value in values],
                tf.dtypes.as_dtype(definition.inputs[name].dtype).as_numpy_dtype,
            )
            for name, values in inputs.items()
        }
        try:
            outputs = self._model.run(signature, arrays)
        except tf.errors.InvalidArgumentError as error:
            raise ClientError(cause_of(error), "INVALID_ARGUMENT") from None
        return {name: as_json(name, array) for name, array in outputs.items()}
