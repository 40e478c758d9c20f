"""Execution of a text-generating task's requests in LiteRT."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import tensorflow as tf

from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.io.serving import MAX_TOKENS, RECORD

if TYPE_CHECKING:
    from macaron_tf.tasks.base import Decoding

Arrays = Mapping[str, np.ndarray]


class LiteTexts:
    """Engine that answers requests of a text-generating task in LiteRT."""

    def __init__(self, task: "Decoding"):
        from macaron_tf.engines.graph import checked, column_specs

        self._task, self.lite = task, task.decoder
        specs = column_specs(task.inputs)
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
        """Computes `TaskKind.serve` for a request of any size, one thread after the other."""
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
