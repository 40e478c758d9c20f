"""Export of weights and settings in Hugging Face's format (inverse of `arrays` and `family`)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Raw, Table, find_entry
from macaron_tf.hub.config import ForeignConfig, shortest_period
from macaron_tf.hub.family import Family
from macaron_tf.models.config import WEIGHTLESS_FIELDS, StackConfig, differing_fields
from macaron_tf.pretrained import Pretrained
from macaron_tf.settings import hints_of

# Settings that do not change the outputs of a trained model.
_WITHOUT_EFFECT = (
    *WEIGHTLESS_FIELDS,
    "vocab_size",
    "position_offset",
    "pad_id",
    "begin_id",
    "end_id",
    "initializer_range",
    "initializer",
    "scaled_outputs",
)


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
    def auto_class(self) -> str | None:
        """Name of the auto class that loads the folder's Python code, such as `AutoModel`.

        `None` means that the folder contains no code.
        """
        auto_classes = {
            reference.rpartition(".")[2]: name
            for name, reference in self.config.get("auto_map", {}).items()
        }
        return auto_classes.get(self.config["architectures"][0])


def layer_state(
    layer: keras.layers.Layer,
    table: Table,
    prefix: str = "",
    transpose_kernels: bool = True,
    convert: Callable[[keras.Variable, np.ndarray], np.ndarray] = lambda variable, array: array,
) -> dict[str, np.ndarray]:
    """Converts a layer's weights to a dict mapping PyTorch name to array.

    The function is the inverse of `assign_weights`.

    Args:
        layer: built layer or model.
        table: mapping of weight names (see the module `arrays`).
        prefix: prefix to put before all PyTorch names.
        transpose_kernels: whether PyTorch kernels have the shape (outputs, inputs) (see
            `TorchArrays`).
        convert: function of a variable and its array that returns the array to write, for example
            with permuted channels.

    Raises:
        UserError: the table has no entry for a weight.
    """
    state = {}
    for variable in layer.weights:
        entry, names, variable_name = find_entry(variable.path, table)
        if not names:
            raise UserError(
                f"the weight {variable.path} has no counterpart in Hugging Face's model: save the "
                "model in macaron_tf's own format"
            )
        array = convert(variable, keras.ops.convert_to_numpy(variable).astype("float32"))
        parts = np.split(array, len(names), axis=-1)
        if isinstance(entry, Raw):
            parts = [entry.inverse(value) for value in parts]
        else:
            suffix = "bias" if variable_name in ("bias", "beta") else "weight"
            names = [f"{name}.{suffix}" for name in names]
            parts = [
                value.T if transpose_kernels and variable_name == "kernel" else value
                for value in parts
            ]
        state |= {f"{prefix}{name}": value for name, value in zip(names, parts, strict=True)}
    return state


def kept_rows(model: Pretrained) -> np.ndarray:
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


def config_fields(family: Family, config: StackConfig) -> dict[str, Any]:
    """Converts a configuration to fields of the family's `config.json`.

    The function is the inverse of `Family.read_settings`. If the family does not support the value
    of a setting, the result omits the field of this setting. `unsupported_settings` then reports
    the setting.
    """
    fields = dict(family.required_fields)
    for setting, (field, _, *choices) in family.settings.items():
        value = getattr(config, setting)
        if choices:
            value = next(
                (name for name, macaron_value in choices[0].items() if macaron_value == value), None
            )
        if value is not None:
            fields[field] = value
    return {**fields, **family.derive_fields(config)}


def unsupported_settings(family: Family, config: StackConfig) -> dict[str, Any]:
    """Returns a dict mapping each setting that a Hugging Face family cannot express to its value.

    The function converts the configuration to the family's settings and back, and compares the
    result with the original configuration. Settings that do not change the outputs of a trained
    model are left out. If the family does not support the value of a required field, the dict
    contains only the setting of this field.
    """
    config = _normalized(config)
    fields = config_fields(family, config)
    for setting, (field, default, *_) in family.settings.items():
        if default is None and field not in fields:  # not among the family's choices
            return {setting: getattr(config, setting)}
    settings = family.read_settings(ForeignConfig(fields, family.name))
    restored = type(config)(vocab_size=config.vocab_size, **settings)
    differing = differing_fields(config, _normalized(restored))
    return {name: value for name, value in differing.items() if name not in _WITHOUT_EFFECT}


def _normalized(config: StackConfig) -> StackConfig:
    """Normalizes a configuration, so that two configurations of equivalent models are equal.

    A setting that has no effect gets its default value. For example, `rnn_gate` is reset if the
    model has no SwishRNN. An explicit size that equals the default becomes `None`, for example
    `head_dim=64` with `hidden_dim=768` and 12 heads. A list of equal blocks becomes a single block,
    and a periodic list of attention windows becomes its shortest period.
    """
    defaults = {
        "head_dim": config.hidden_dim // config.num_heads,
        "embedding_dim": config.hidden_dim,
    }
    defaults["num_kv_heads"] = config.num_heads
    optional = [name for name in defaults if name in hints_of(type(config))]
    changes = {name: None for name in optional if getattr(config, name) == defaults[name]}
    if config.longest is None:
        changes["max_length"] = type(config).max_length
    if "num_layers" in hints_of(type(config)):
        windows = shortest_period([config.layer(index)[2] for index in range(config.num_layers)])
        changes["attention_windows"] = windows
        if not any(windows) or config.local_rotary_base == config.rotary_base:
            changes["local_rotary_base"] = None
    if len({*config.blocks}) == 1:
        changes["block"] = config.blocks[0]
    if "swish_rnn" not in config.blocks:
        config_class = type(config)
        changes |= {
            "rnn_gate": config_class.rnn_gate,
            "rnn_step_sizes": config_class.rnn_step_sizes,
        }
    return dataclasses.replace(config, **changes)


def find_family(
    families: Sequence[Family],
    config: StackConfig,
    describe_missing: Callable[[Family], str] = lambda family: "",
) -> Family:
    """Returns the first family that can express a whole model.

    Args:
        families: families to try, in order.
        config: configuration of the model.
        describe_missing: function that takes a family, and returns a short description of a part of
            the model that the family lacks, such as "a replaced token detection head". The function
            returns an empty string if the family has all parts. The function need not compare
            settings.

    Raises:
        UserError: no family can express the model. For each family, the message names a part or
            setting that the family lacks.
    """
    reasons: dict[str, list[str]] = {}  # from the name of a family to what it lacks
    counts: dict[str, int] = {}  # from the name of a family to the number of settings it lacks
    for family in families:
        settings = unsupported_settings(family, config)
        counts[family.name] = len(settings)
        reasons[family.name] = [f"{name}={value!r}" for name, value in settings.items()]
        if not settings:
            reasons[family.name] = [describe_missing(family)]
        if reasons[family.name] == [""]:
            return family
    nearest = min(counts, key=lambda name: counts[name])
    reason = reasons[nearest][0]
    lacking: dict[str, list[str]] = {reason: []}  # from a part to the families that lack the part
    for name, family_reasons in reasons.items():
        if name != nearest:
            shown = reason if reason in family_reasons else family_reasons[0]
            lacking.setdefault(shown, []).append(name)
    also_lacking = lacking.pop(reason)
    nor = f" (nor in {', '.join(also_lacking)})" if also_lacking else ""
    further = "".join(
        f", and {part} has none in {', '.join(names)}" for part, names in lacking.items()
    )
    raise UserError(
        f"{reason} has no counterpart in Hugging Face's {nearest}{nor}{further}: save the model in "
        "macaron_tf's own format, or export a SavedModel by `macaron export`"
    )
