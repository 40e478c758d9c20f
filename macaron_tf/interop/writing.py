"""From our variables and settings into another library's: the way of `arrays` back."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import Family, ForeignConfig, Raw, Table, Transform, entry_of
from macaron_tf.layers.heads import ClassificationHead
from macaron_tf.models.config import FREE, StackConfig, differing_fields
from macaron_tf.pretrained import Pretrained
from macaron_tf.settings import hints_of

# Fields of which no output depends.
_WITHOUT_EFFECT = (*FREE, "vocab_size", "initializer_range", "initializer", "scaled_outputs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder:
    """The contents of a folder that transformers opens.

    Attributes:
        config: of `config.json`.
        state: the weights by their names.
        tokenizer: contents of the tokenizer's files by name; {} without one.
        pipeline: the task as the hub calls it; "" = none.
        library: that opens the folder.
        files: further contents by path.
        notes: sentences about what is left out or added, for the user and the model card.
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
        """The class of transformers that finds the model's own in the folder; None = no need."""
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
    """The weights of a built layer by a PyTorch model's names: the inverse of `assign_weights`.

    Args:
        prefix: of all names.
        linear: see `TorchArrays`.
        changed: a variable's array in another order of channels.

    Raises:
        UserError: the table has nothing for a weight.
    """
    state = {}
    for variable in layer.weights:
        entry, names, part = entry_of(variable.path, table)
        if not names:
            raise UserError(f"Hugging Face's model has no place for the weight {variable.path}.")
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


def label_names(model: Pretrained, head: ClassificationHead) -> dict[str, Any]:
    """The fields with the names of a head's classes."""
    names = model.labels or tuple(model.labelled.get("task", {}).get("labels", ()))
    if len(names) != head.num_classes:
        names = [f"LABEL_{number}" for number in range(head.num_classes)]
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers}


def label_fields(model: Pretrained, head: ClassificationHead) -> dict[str, Any]:
    """The fields of a head that gives a text a class, or with one class a number."""
    kind = "single_label_classification" if head.num_classes > 1 else "regression"
    return {"problem_type": kind, **label_names(model, head)}


def their_rows(ids: np.ndarray, missing: float = 0.0) -> Transform:
    """The inverse of `rows`: rows of ours at their `ids (V',)`, -1 for none; `missing` between."""
    known = np.flatnonzero(ids >= 0)

    def placed(array: np.ndarray) -> np.ndarray:
        table = np.full((ids.max() + 1, *array.shape[1:]), missing, "float32")
        table[ids[known]] = array[known]
        return table

    return placed


def written_settings(family: Family, config: StackConfig) -> dict[str, Any]:
    """Their settings of our configuration: the inverse of `Family.read_settings`.

    A value that theirs cannot have is left out; see `misfits`.
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
    """Our settings, with values, that a family's models do not have; {} = the family fits."""
    config = _plain(config)
    written = written_settings(family, config)
    for ours, (theirs, default, *_) in family.settings.items():
        if default is None and theirs not in written:  # none of their choices
            return {ours: getattr(config, ours)}
    fields = ForeignConfig(written, family.name)
    read = type(config)(vocab_size=config.vocab_size, **family.read_settings(fields))
    found = differing_fields(config, _plain(read))
    return {name: value for name, value in found.items() if name not in _WITHOUT_EFFECT}


def _plain(config: StackConfig) -> StackConfig:
    """The configuration without names of sizes and blocks that are as by default, or unread."""
    usual = {"head_dim": config.hidden_dim // config.num_heads, "embedding_dim": config.hidden_dim}
    there = [name for name in usual if name in hints_of(type(config))]
    changes = {name: None for name in there if getattr(config, name) == usual[name]}
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
    """The first family that has a place for all of a model.

    Args:
        lacks: what a family has no place for besides settings, in a few words; "" = nothing.

    Raises:
        UserError: none has; it names what has no place in the nearest one.
    """
    reasons = []
    for family in families:
        found = misfits(family, config)
        if not found and not lacks(family):
            return family
        first = ", ".join(f"{name}={value!r}" for name, value in [*found.items()][:1])
        reasons.append((len(found), first or lacks(family), family.name))
    _, reason, name = min(reasons, key=lambda reason: reason[0])
    others = [family.name for family in families if family.name != name]
    nor = f" (nor in {', '.join(others)})" if others else ""
    raise UserError(
        f"{reason} has no place in Hugging Face's {name}{nor}: save it in this library's own "
        "format, or export a SavedModel by `python -m export.saved_model`"
    )
