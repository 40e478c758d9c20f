"""Execution of an exported model by its SavedModel and, for small requests, in LiteRT."""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import tensorflow as tf

from macaron_tf.engines.lite import DECODER, NETWORK, LiteModel, LiteNetwork
from macaron_tf.engines.session import SessionModel
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.io.serving import EXTRA, MAX_TOKENS, MODEL_FILE, RECORD, version_of

if TYPE_CHECKING:
    from macaron_tf.tasks.base import Decoding

_SIGNATURE = "serving_default"
Arrays = Mapping[str, np.ndarray]


class ExportedModel:
    """Exported model in memory, which answers small requests in LiteRT if it has a LiteRT file.

    If the SavedModel is damaged, the constructor raises an exception, whose class depends on the
    damage.

    Example:
        model = ExportedModel(find_version("served/m30k"))
        model.run("serving_default", {"text": np.array([b"A dog is running."], object)})

    Attributes:
        small_engine: LiteRT engine for small requests to `serving_default`. `None` means that the
            version has no LiteRT file, that the file cannot be opened, or that LiteRT was not
            faster than the SavedModel at the export.
        texts: LiteRT engine that can stream the answers of a text-generating task, or `None`.
        warning: error from opening the LiteRT file, or `None`.
    """

    def __init__(self, path: str | os.PathLike):
        self._model = SessionModel(path)
        self.signature_defs = self._model.signature_defs
        self.texts: LiteTexts | None = None
        self.warning: UserError | None = None
        engine: LiteModel | LiteTexts | None = None
        extra = pathlib.Path(path, EXTRA)
        try:
            if (extra / NETWORK).is_file():
                engine = LiteModel(LiteNetwork(extra), self._model)
            elif (extra / DECODER).is_file():
                engine = self.texts = LiteTexts.from_folder(extra)
        except UserError as error:
            self.warning = error
        self.small_engine = engine if engine and engine.lite.max_rows else None

    def run(self, signature: str, inputs: Arrays) -> dict[str, np.ndarray]:
        """Runs a signature, and returns a dict mapping output name to array.

        This method is thread-safe.

        Raises:
            KeyError: the model has no such signature, or an input is missing.
            tf.errors.InvalidArgumentError: the model does not accept the value of an input.
        """
        small = self.small_engine if signature == _SIGNATURE else None
        outputs = small.answer(inputs) if small else None
        return self._model.run(signature, inputs) if outputs is None else outputs


class LiteTexts:
    """Engine that answers requests of a text-generating task in LiteRT."""

    def __init__(self, task: "Decoding"):
        from macaron_tf.engines.graph import checked

        self._task, self.lite = task, task.decoder
        specs = [tf.TensorSpec((None,), dtype, name) for name, dtype in task.inputs.items()]
        self._graph = tf.function(checked(task, task.serve), input_signature=specs, autograph=False)

    @classmethod
    def from_folder(cls, folder: pathlib.Path) -> Self:
        """Opens the LiteRT decoder in an exported SavedModel, from its folder `assets.extra`."""
        # The imports are here, because a server of other models does not need these modules.
        from macaron_tf.engines.lite_decoding import LiteDecoder
        from macaron_tf.tasks import DECODING
        from macaron_tf.text.base import Vocabulary

        decoder, mend = LiteDecoder(folder), "export the model again"
        record = read_json(folder / RECORD, mend=mend, kind=str)
        with refuse_damage(folder / RECORD, mend):
            task_class = DECODING[record["kind"]]
            return cls(task_class.from_exported(decoder, Vocabulary.load(folder), record))

    def serve(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Computes the outputs of `TaskKind.serve` for a request of any size.

        Requests from several threads run one after the other.
        """
        with self.lite.alone():
            outputs = self._graph(*(tf.constant(inputs[name]) for name in self._task.inputs))
        return {name: value.numpy() for name, value in outputs.items()}

    def stream(self, inputs: Arrays) -> Iterator[str]:
        """Yields the answer to a request with one text in parts, during the decoding."""
        values = {name: inputs[name].item() for name in self._task.inputs}
        text = values.pop("text").decode(errors="replace")
        if "max_tokens" in values:  # as in the graph
            values["max_tokens"] = min(values["max_tokens"], MAX_TOKENS)
        return self._task.stream(text, **values)

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray] | None:
        """Computes the outputs of `serve` for 1 to `max_rows` texts, or else returns `None`."""
        count = len(inputs["text"])
        return self.serve(inputs) if 0 < count <= self.lite.max_rows else None


def find_versions(folder: str | os.PathLike) -> dict[int, pathlib.Path]:
    """Returns a dict mapping version to folder for a model's folder.

    A version is a subfolder that has a number as its name and contains `saved_model.pb`. All other
    files and folders are ignored.
    """
    files = pathlib.Path(folder).glob(f"*/{MODEL_FILE}")
    folders = [file.parent for file in files if file.is_file()]
    versions = {folder: version_of(folder.name) for folder in folders}
    return {version: folder for folder, version in versions.items() if version is not None}


def find_version(folder: str | os.PathLike) -> pathlib.Path:
    """Returns the folder of the newest version of a model, or `folder` if it is a version."""
    folder = pathlib.Path(folder)
    if (folder / MODEL_FILE).is_file():
        return folder
    if not (folders := find_versions(folder)):
        raise UserError(
            f"{folder} contains no exported model: check the path, or run `macaron export`"
        )
    return folders[max(folders)]
