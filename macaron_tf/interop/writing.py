"""Export of weights and settings in Hugging Face's format (the inverse of `arrays`)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import (
    Family,
    ForeignConfig,
    Raw,
    Table,
    Transform,
    entry_of,
    shortest_turn,
)
from macaron_tf.models.config import FREE, StackConfig, differing_fields
from macaron_tf.settings import hints_of

# Settings that do not change the outputs of a trained model.
_WITHOUT_EFFECT = (*FREE, "vocab_size", "initializer_range", "initializer", "scaled_outputs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder:
    """Contents of a folder that Hugging Face's transformers can load.

    Attributes:
        config: fields of `config.json`.
        state: dict mapping the name of a weight in the PyTorch model to its array.
        tokenizer: dict mapping the name of a tokenizer file to its contents. The dict is empty if
            there is no tokenizer.
        pipeline: name of the task on the Hugging Face Hub, such as "fill-mask". An empty string
            means that the model card names no task.
        library: name of the library that can load the folder.
        files: dict mapping the path of a further file to its contents.
        notes: sentences about parts that are left out or added, for stderr and the model card.
    """

    config: Mapping[str, Any]
    state: Mapping[str, np.ndarray]
    tokenizer: Mapping[str, bytes]
    pipeline: str = ""
    library: str = "transformers"
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def automatic(self) -> str | None:
        """Name of the auto class that loads the folder's Python code, such as `AutoModel`.

        `None` means that the folder contains no code.
        """
        places = {
            place.rpartition(".")[2]: n for n, place in self.config.get("auto_map", {}).items()
        }
        return places.get(self.config["architectures"][0])


def layer_state(
    layer: keras.layers.Layer,
    table: Table,
    prefix: str = "",
    linear: bool = True,
    changed: Callable[[keras.Variable, np.ndarray], np.ndarray] = lambda variable, array: array,
) -> dict[str, np.ndarray]:
    """Converts a layer's weights to a dict mapping PyTorch name to array.

    The function is the inverse of `assign_weights`.

    Args:
        layer: built layer or model.
        table: mapping of weight names (see the module `arrays`).
        prefix: prefix of all PyTorch names.
        linear: whether PyTorch kernels have the shape (outputs, inputs) (see `TorchArrays`).
        changed: function of a variable and its array that returns the array to write, for example
            with permuted channels.

    Raises:
        UserError: the table has no entry for a weight.
    """
    state = {}
    for variable in layer.weights:
        entry, names, part = entry_of(variable.path, table)
        if not names:
            raise UserError(
                f"the weight {variable.path} has no counterpart in Hugging Face's model: save the "
                "model in macaron_tf's own format"
            )
        array = changed(variable, keras.ops.convert_to_numpy(variable).astype("float32"))
        parts = np.split(array, len(names), axis=-1)
        if isinstance(entry, Raw):
            parts = [entry.inverse(value) for value in parts]
        else:
            end = "bias" if part in ("bias", "beta") else "weight"
            names = [f"{name}.{end}" for name in names]
            parts = [value.T if linear and part == "kernel" else value for value in parts]
        state |= {f"{prefix}{name}": value for name, value in zip(names, parts, strict=True)}
    return state


def their_rows(ids: np.ndarray, missing: float = 0.0) -> Transform:
    """Returns a function that reorders the rows of an embedding table by their Hugging Face ids.

    Row n of the table becomes row `ids[n]` of the result. The function is the inverse of
    `arrays.rows`.

    Args:
        ids: int array with the Hugging Face id of each row, or -1 for a row that is left out.
        missing: value of all entries in result rows that have no row in the table.
    """
    known = np.flatnonzero(ids >= 0)

    def placed(array: np.ndarray) -> np.ndarray:
        table = np.full((ids.max() + 1, *array.shape[1:]), missing, "float32")
        table[ids[known]] = array[known]
        return table

    return placed


def written_settings(family: Family, config: StackConfig) -> dict[str, Any]:
    """Converts a configuration to fields of the family's `config.json`.

    The function is the inverse of `Family.read_settings`. If the family does not support the value
    of a setting, the result omits the field of this setting. `misfits` then reports the setting.
    """
    fields = dict(family.required)
    for ours, (theirs, _, *choices) in family.settings.items():
        value = getattr(config, ours)
        if choices:
            value = next((name for name, own in choices[0].items() if own == value), None)
        if value is not None:
            fields[theirs] = value
    return {**fields, **family.underived(config)}


def misfits(family: Family, config: StackConfig) -> dict[str, Any]:
    """Returns a dict mapping each setting that a Hugging Face family cannot express to its value.

    The function converts the configuration to the family's settings and back, and compares the
    result with the original configuration. Settings that do not change the outputs of a trained
    model are left out.
    """
    config = _plain(config)
    written = written_settings(family, config)
    for ours, (theirs, default, *_) in family.settings.items():
        if default is None and theirs not in written:  # not among the family's choices
            return {ours: getattr(config, ours)}
    fields = ForeignConfig(written, family.name)
    read = type(config)(vocab_size=config.vocab_size, **family.read_settings(fields))
    found = differing_fields(config, _plain(read))
    return {name: value for name, value in found.items() if name not in _WITHOUT_EFFECT}


def _plain(config: StackConfig) -> StackConfig:
    """Normalizes a configuration, so that two configurations of equivalent models are equal.

    A setting that has no effect gets its default value. For example, `rnn_gate` is reset if the
    model has no SwishRNN. An explicit size that equals the default becomes `None`, for example
    `head_dim=64` with `hidden_dim=768` and 12 heads. A list of equal blocks becomes a single block,
    and a periodic list of attention windows becomes its shortest period.
    """
    usual = {"head_dim": config.hidden_dim // config.num_heads, "embedding_dim": config.hidden_dim}
    usual["num_kv_heads"] = config.num_heads
    there = [name for name in usual if name in hints_of(type(config))]
    changes = {name: None for name in there if getattr(config, name) == usual[name]}
    if config.longest is None:
        changes["max_length"] = type(config).max_length
    if "num_layers" in hints_of(type(config)):
        windows = shortest_turn([config.layer(n)[2] for n in range(config.num_layers)])
        changes["attention_windows"] = windows
        if not any(windows) or config.local_rotary_base == config.rotary_base:
            changes["local_rotary_base"] = None
    if len({*config.blocks}) == 1:
        changes["block"] = config.blocks[0]
    if "swish_rnn" not in config.blocks:
        kind = type(config)
        changes |= {"rnn_gate": kind.rnn_gate, "rnn_step_sizes": kind.rnn_step_sizes}
    return dataclasses.replace(config, **changes)


def fitting(
    families: Sequence[Family],
    config: StackConfig,
    lacks: Callable[[Family], str] = lambda family: "",
) -> Family:
    """Returns the first family that can express a whole model.

    Args:
        families: families to try, in order.
        config: configuration of the model.
        lacks: function that takes a family, and returns a short description of a part of the model
            that the family lacks, such as "a replaced token detection head". The function returns
            an empty string if the family has all parts. The function need not compare settings.

    Raises:
        UserError: no family can express the model. For each family, the message names a part or
            setting that the family lacks.
    """
    reasons: dict[str, list[str]] = {}  # from the name of a family to what it lacks
    counts: dict[str, int] = {}  # from the name of a family to the number of settings it lacks
    for family in families:
        found = [f"{name}={value!r}" for name, value in misfits(family, config).items()]
        reasons[family.name], counts[family.name] = found or [lacks(family)], len(found)
        if reasons[family.name] == [""]:
            return family
    nearest = min(counts, key=lambda name: counts[name])
    first = reasons[nearest][0]
    places: dict[str, list[str]] = {first: []}  # from a part to the families that lack it
    for name, found in reasons.items():
        if name != nearest:
            places.setdefault(first if first in found else found[0], []).append(name)
    shared = places.pop(first)
    nor = f" (nor in {', '.join(shared)})" if shared else ""
    others = "".join(
        f", and {reason} has none in {', '.join(names)}" for reason, names in places.items()
    )
    raise UserError(
        f"{first} has no counterpart in Hugging Face's {nearest}{nor}{others}: save the model in "
        "macaron_tf's own format, or export a SavedModel by `python -m export.saved_model`"
    )
