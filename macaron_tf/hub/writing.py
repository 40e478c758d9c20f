"""Contents of a folder in Hugging Face's format, and the weights in it (inverse of `arrays`)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Table, find_entry
from macaron_tf.tasks.model_parts import ModelParts


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder:
    """Contents of a folder that Hugging Face's transformers can load.

    Attributes:
        config: fields of `config.json`.
        state: dict mapping the name of a weight in the PyTorch model to its array.
        pipeline: name of the task on the Hugging Face Hub, such as "fill-mask". An empty string
            means that the model card names no task.
        library: name of the library that can load the folder.
        files: dict mapping the path of a further file, such as a tokenizer's, to its contents.
        notes: sentences about parts that are left out or added, for stderr and the model card.
    """

    config: Mapping[str, Any]
    state: Mapping[str, np.ndarray]
    pipeline: str = ""
    library: str = "transformers"
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def layer_state(
    layer: keras.layers.Layer,
    table: Table,
    prefix: str = "",
    transpose_kernels: bool = True,
    convert: Callable[[keras.Variable, np.ndarray], np.ndarray] = lambda variable, array: array,
) -> dict[str, np.ndarray]:
    """Converts a layer's weights to PyTorch's names and arrays (the inverse of `assign_weights`).

    Args:
        transpose_kernels: see `Arrays`.
        convert: function of a variable and its array that returns the array to write, for example
            with permuted channels.
    """
    state = {}
    for variable in layer.weights:
        entry = find_entry(variable.path, table, transpose_kernels)
        if entry is None:
            why = f"the weight {variable.path} has no counterpart in Hugging Face's model"
            raise UserError(f"{why}: save the model in macaron_tf's own format")
        array = convert(variable, keras.ops.convert_to_numpy(variable).astype("float32"))
        parts = np.split(array, len(entry.names), axis=-1)
        for name, value in zip(entry.names, parts, strict=True):
            state[prefix + name] = entry.inverse(value)
    return state


def kept_rows(model: ModelParts) -> np.ndarray:
    """Returns the indices of the embedding rows that the folder contains, in order.

    A model from another library keeps the rows of its checkpoint. For a model that was trained
    here, the rows that fill the table up to a multiple of 8 are left out.
    """
    vocabulary, special = model.vocabulary, model.special
    if special.rows is not None:
        return np.arange(special.rows)
    if vocabulary is None:
        return np.arange(model.config.vocab_size)
    return np.r_[: vocabulary.pieces, vocabulary.size : vocabulary.size + model.sentinels]
