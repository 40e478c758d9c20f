"""Conversion of another library's settings and weights to macaron_tf.

A mapping of weight names (type `Table`) maps the end of a path in macaron_tf to a name in the other
library. In both, `{}` stands for the index of a block:

    "block_{}/attention_0/attention/query_key_value": ("h.{}.query", "h.{}.key", "h.{}.value")
    "block_{}/attention_0/norm": "h.{}.ln_1"
    "embeddings/segments": Raw("segments.weight")

If the key is the end of a layer's path, the value is the name of a layer in the other library, or a
tuple of layer names. The kernels of several layers are concatenated. `Arrays.layer_array` converts
each array to macaron_tf's layout. If the key is the end of a variable's path, the value is a `Raw`:
the name of an array and an optional transformation.
"""

import dataclasses
import json
import pathlib
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError, needed
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.models import EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.config import StackConfig

# Dict mapping the name of an activation in PyTorch models to its name in macaron_tf.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


# Dict mapping a type of RoPE scaling to the names of the values in the setting `rotary_scaling`.
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}


def check_files(directory: pathlib.Path, description: str, *names: str) -> None:
    """Checks that a directory contains certain files.

    Args:
        directory: directory to check.
        description: noun for the directory in the error message, such as "KerasHub preset".
        names: names of the required files.

    Raises:
        UserError: a file is missing.
    """
    for name in names:
        if not (directory / name).is_file():
            raise UserError(
                f"{directory} is not a {description}, because it has no {name}: give the model's "
                "whole folder"
            )


def json_bytes(value: Any) -> bytes:
    """Encodes a value as the contents of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class ForeignConfig:
    """Settings of another library's model.

    Args:
        fields: fields of `config.json` or a similar file.
        where: name of this file in error messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: str):
        self.fields = fields
        self.where = where

    @classmethod
    def of_directory(cls, directory: pathlib.Path, model_types: Collection[str]) -> "ForeignConfig":
        """Reads a Hugging Face `config.json`.

        Raises:
            UserError: the file is missing or damaged, or the `model_type` of the model is not in
                `model_types`.
        """
        file = directory / "config.json"
        check_files(directory, "Hugging Face directory", file.name)
        config = cls(read_json(file), str(file))
        if config.fields.get("model_type") not in model_types:
            raise UserError(
                f"{file} has model_type={config.fields.get('model_type')!r}, but only "
                f"{', '.join(map(repr, model_types))} can be read here: give a model of such a type"
            )
        return config

    def get(self, field: str, default=None) -> Any:
        """Returns the value of a field, or `default` if the field is missing.

        The type of the value is not checked.
        """
        return self.fields.get(field, default)

    def number(
        self,
        field: str,
        default: int | float | None = None,
        value_type: type[int] | type[float] = int,
    ) -> int | float:
        """Returns the value of a numeric field.

        Args:
            field: name of the field.
            default: value to return if the field is missing. The field must have the type of
                `default`. `None` means that the field is required.
            value_type: type that the field must have if `default` is `None`.

        Raises:
            UserError: a required field is missing, or the value is not a number of the required
                type.
        """
        value_type = value_type if default is None else type(default)
        value = self._required(field, default)
        if type(value) not in {
            int,
            value_type,
        }:  # not isinstance, because a bool is an int in Python
            expected = "a whole number" if value_type is int else "a number"
            raise UserError(
                f"{self.where} has {field}={value!r}, but {field} must be {expected}: correct this "
                "field"
            )
        return value_type(value)

    def settings(self, table: Mapping[str, tuple]) -> dict[str, Any]:
        """Reads settings, and returns a dict mapping macaron_tf setting to value.

        Args:
            table: settings to read, in the format of `Family.settings`.
        """
        return {
            setting: self.choice(field, choices[0], default)
            if choices
            else self.number(field, default)
            for setting, (field, default, *choices) in table.items()
        }

    def choice(self, field: str, choices: Mapping[str, str], default: str | None = None) -> str:
        """Returns macaron_tf's name for the value of a field, such as an activation.

        Args:
            field: name of the field.
            choices: dict mapping each supported value to its name in macaron_tf.
            default: value to translate if the field is missing; `None` means that the field is
                required.

        Raises:
            UserError: a required field is missing, or the value is not supported.
        """
        name = self._required(field, default)
        if not isinstance(name, str) or name not in choices:
            raise UserError(
                f"{self.where} has {field}={name!r}, but only {', '.join(choices)} can be "
                "used: give another model"
            )
        return choices[name]

    def require(self, required: Mapping[str, Any]) -> None:
        """Raises a UserError if a field has an unsupported value.

        Args:
            required: dict mapping a field to its only supported value. A missing field is accepted.
        """
        for field, value in required.items():
            if self.fields.get(field, value) != value:
                raise UserError(
                    f"{self.where} has {field}={self.fields[field]!r}, but only {value!r} can be "
                    "used: give another model"
                )

    def _required(self, field: str, default) -> Any:
        if field not in self.fields and default is None:
            raise UserError(
                f"{self.where} lacks the field {field}: use the configuration that belongs to the "
                "weights"
            )
        return self.fields.get(field, default)


class Arrays:
    """Named weight arrays of another library's model, with a record of the arrays read so far.

    A subclass defines two things. The method `layer_array(layer, variable)` returns an array of the
    other library's layer in macaron_tf's layout, where `variable` is the variable's name in
    macaron_tf, such as "kernel" or "gamma". The class attribute `kernel_suffix` is the suffix in
    the name of a linear layer's kernel.

    Attributes:
        arrays: dict mapping name to array.
        names_read: names of the arrays that were read.
    """

    kernel_suffix: typing.ClassVar[str]

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.names_read: set[str] = set()

    def find(self, name: str) -> list[str]:
        """Returns the full names of all arrays that match `name`.

        In this base class, an array matches if it is called `name`. A subclass may also accept
        other arrays.
        """
        return [name] if name in self.arrays else []

    def has(self, name: str | None) -> bool:
        """Returns whether an array matches `name`. For `None`, the result is False."""
        return name is not None and bool(self.find(name))

    def has_layer(self, layer: str | None) -> bool:
        """Returns whether the kernel of a linear layer called `layer` exists.

        For `None`, the result is False.
        """
        return layer is not None and self.has(f"{layer}{self.kernel_suffix}")

    def array(self, *names: str) -> np.ndarray:
        """Returns the array of the first name that matches, and records that the array was read.

        Args:
            names: names to try, in order.

        Raises:
            UserError: no array matches a name in `names`, or several arrays match the same name.
        """
        matches = next(filter(None, map(self.find, names)), [])
        if len(matches) != 1:
            several = f"{len(matches)} arrays" if matches else "no array"
            raise UserError(
                f"the weights file contains {several} called {names[0]}, but must contain exactly "
                "one: check that the configuration and the weights belong to the same model"
            )
        self.names_read.add(matches[0])
        return self.arrays[matches[0]]


class TorchArrays(Arrays):
    """Weights of a PyTorch model.

    Args:
        state: dict mapping name to array, as in a `state_dict`.
        prefix: prefix to remove from the names.
        transpose_kernels: whether kernels have the shape (outputs, inputs), as in PyTorch's
            `Linear`, instead of (inputs, outputs), as in transformers' `Conv1D`.
    """

    kernel_suffix = ".weight"

    def __init__(
        self, state: Mapping[str, np.ndarray], prefix: str = "", transpose_kernels: bool = True
    ):
        super().__init__({name.removeprefix(prefix): value for name, value in state.items()})
        self.transpose_kernels = transpose_kernels

    def layer_array(self, layer: str, variable: str) -> np.ndarray:
        name = "bias" if variable in ("bias", "beta") else "weight"
        # Early conversions of BERT kept TensorFlow's names of LayerNorm weights (gamma, beta).
        array = self.array(f"{layer}.{name}", f"{layer}.{variable}")
        return array.T if self.transpose_kernels and variable == "kernel" else array


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the weights in a Hugging Face directory.

    The weights may be in one file, or in several files that an index such as
    `model.safetensors.index.json` lists.

    Returns:
        A dict mapping PyTorch name to float32 array.

    Raises:
        UserError: a file is missing or damaged.
    """
    names = ("model.safetensors", "pytorch_model.bin")
    for name in names:
        index = directory / f"{name}.index.json"
        if (directory / name).is_file():
            return _read_arrays(directory / name)
        if index.is_file():
            shards = ForeignConfig(read_json(index), str(index)).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise UserError(
                    f"{index} contains no weight_map, which lists the weights: download or copy "
                    "the file again"
                )
            state: dict[str, np.ndarray] = {}
            for shard in sorted(set(map(str, shards.values()))):
                if not (directory / shard).is_file():
                    raise UserError(
                        f"{directory} lacks the file {shard}, which {index.name} names: download "
                        "or copy the file again"
                    )
                state |= _read_arrays(directory / shard)
            if absent := sorted(shards.keys() - state.keys()):
                raise UserError(
                    f"{index} names the weight {absent[0]}, but no file contains this weight: "
                    "download or copy the files again"
                )
            return state
    raise UserError(
        f"{directory} contains no weights, neither {' nor '.join(names)}: download or copy the "
        "weights again"
    )


def _read_arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads a safetensors or PyTorch file as a dict mapping name to float32 array."""
    is_safetensors = file.suffix == ".safetensors"
    with needed(str(file), "torch"):
        if is_safetensors:
            import safetensors.numpy
        else:
            import torch
    try:
        if is_safetensors:
            state = safetensors.numpy.load_file(file)
            return {name: np.asarray(array, "float32") for name, array in state.items()}
        state = torch.load(file, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # PyTorch does not document what its unpickler raises
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{file} cannot be read ({reason}): download or copy the file again"
        ) from None


# Output bias of the unused rows that pad an embedding table to a multiple of 8. With this bias, the
# unused rows have probability 0, and the probabilities of the tokens do not change. float16 cannot
# represent -1e5.
UNUSED_TOKEN_BIAS = -1e4


Transform = Callable[[np.ndarray], np.ndarray]


class Raw:
    """Entry for a single variable in a mapping of weight names.

    The value of the variable comes from one or more arrays of another library. Several arrays are
    concatenated along the last axis.

    Args:
        names: full names of the arrays.
        transform: function that converts each array before the concatenation; `None` means no
            conversion.
        inverse: inverse of `transform`, for writing arrays. An export needs `inverse` if
            `transform` is set.
    """

    def __init__(
        self, *names: str, transform: Transform | None = None, inverse: Transform | None = None
    ):
        self.names = names
        self.transform = transform or np.asarray
        self.inverse = inverse if transform or inverse else np.asarray


# Mapping of weight names. If an entry is an array, the array is assigned to the variable unchanged.
Table = Mapping[str, str | tuple[str, ...] | Raw | np.ndarray]


def transformer_layer(
    prefix: str,
    attention: Sequence[str],
    norm: str,
    feed_forward: Sequence[str],
    feed_forward_norm: str,
    cross: Sequence[str] = (),
    cross_norm: str = "",
    path_prefix: str = "block_{}",
) -> Table:
    """Builds the mapping of weight names for a Transformer layer.

    Args:
        prefix: prefix of all names in the other library. The other arguments contain the names
            without this prefix.
        attention: names of the query, key, value and output layers in self-attention. If one layer
            computes queries, keys and values, a single name replaces the first three names.
        norm: name of the norm in the self-attention sub-layer.
        feed_forward: names of the inner and the outer linear layer in the feed-forward sub-layer. A
            gated feed-forward sub-layer has three names: two inner layers and the outer layer.
        feed_forward_norm: name of the norm in the feed-forward sub-layer.
        cross: names of the layers in cross-attention, in the order of `attention`.
        cross_norm: name of the norm in the cross-attention sub-layer.
        path_prefix: prefix of the paths in macaron_tf.
    """
    parts = {
        "attention_0/attention/query_key_value": attention[:-1],
        # In grouped-query attention, the next two layers replace query_key_value.
        "attention_0/attention/query": attention[:1],
        "attention_0/attention/key_value": attention[1:-1],
        "attention_0/attention/output": attention[-1:],
        "attention_0/norm": [norm],
        "cross_attention_0/attention/query": cross[:1],
        "cross_attention_0/attention/key_value": cross[1:-1],
        "cross_attention_0/attention/output": cross[-1:],
        "cross_attention_0/norm": [cross_norm],
        "feed_forward_1/feed_forward/inner": feed_forward[:-1],
        "feed_forward_1/feed_forward/outer": feed_forward[-1:],
        "feed_forward_1/norm": [feed_forward_norm],
    }
    return {
        f"{path_prefix}/{path}": tuple(prefix + n for n in names) for path, names in parts.items()
    }


def shortest_period(values: Sequence[int]) -> tuple[int, ...]:
    """Returns the shortest pattern whose repetition, truncated to `len(values)`, equals `values`.

    For example, the values (0, 128, 128, 0, 128) give (0, 128, 128).
    """
    sizes = range(1, len(values) + 1)
    candidates = (tuple(values[:size]) for size in sizes)
    periods = (t for t in candidates if all(v == t[n % len(t)] for n, v in enumerate(values)))
    return next(periods, (0,))


def rotary_settings(
    config: ForeignConfig, rope: Mapping[str, Any], field: str, default: float
) -> dict[str, Any]:
    """Reads the base and the scaling of rotary position embeddings (RoPE).

    Args:
        config: settings of the other library's model.
        rope: value of the field `rope_parameters` or `rope_scaling` in `config`.
        field: name of the field in `config` that contains the base if `rope` contains no base.
        default: base to use if neither `rope` nor `config` contains a base.

    Returns:
        A dict with macaron_tf's settings `rotary_base` and `rotary_scaling`.
    """
    rope_type = rope.get("type", "default")  # the field's name in early versions
    fields = {field: config.get(field, default), "rope_type": rope_type, **rope}
    fields = ForeignConfig(fields, config.where)
    fields.require({"partial_rotary_factor": 1.0})
    base = fields.number("rope_theta" if "rope_theta" in rope else field, value_type=float)
    rope_type = fields.choice("rope_type", {name: name for name in ROPE_TYPES})
    scaling = tuple(fields.number(name, value_type=float) for name in ROPE_TYPES[rope_type])
    return {"rotary_base": base, "rotary_scaling": scaling}


def rotary_fields(base: float, scaling: Sequence[float] = ()) -> dict[str, Any]:
    """Builds the value of Hugging Face's `rope_parameters` (the inverse of `rotary_settings`)."""
    rope_type = next(
        rope_type for rope_type, names in ROPE_TYPES.items() if len(names) == len(scaling)
    )
    return {
        "rope_theta": base,
        "rope_type": rope_type,
        **dict(zip(ROPE_TYPES[rope_type], scaling, strict=True)),
    }


def gather_rows(
    ids: np.ndarray, size: int, missing: float = 0.0
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reorders the rows of another library's embedding table.

    Row n of the result is row `ids[n]` of the original table.

    Args:
        ids: int array of row indices in the original table, with -1 for a token that the table
            lacks.
        size: number of rows in the result, at least `len(ids)`.
        missing: value of all entries in result rows that have no row in the original table.
    """
    valid = np.flatnonzero(ids >= 0)

    def gather(array: np.ndarray) -> np.ndarray:
        if ids.max() >= len(array):
            raise UserError(
                f"the vocabulary has ids up to {ids.max()}, but the model has only {len(array)} "
                "embeddings: use the tokenizer files that belong to the model"
            )
        table = np.full((size, *array.shape[1:]), missing, "float32")
        table[valid] = array[ids[valid]]
        return table

    return gather


def note_spare_rows(tokens: np.ndarray, num_tokens: int) -> None:
    """Prints a note on stderr if the embedding table `tokens` has more than `num_tokens` rows.

    `num_tokens` is the number of tokens in the vocabulary.
    """
    if len(tokens) > num_tokens:
        print(
            f"note: the model has {len(tokens):,} embeddings and its vocabulary has {num_tokens:,} "
            "tokens: the other embeddings are left out",
            file=sys.stderr,
        )


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Assigns an array to a variable. Raises a UserError if the two shapes differ."""
    if tuple(variable.shape) != value.shape:
        raise UserError(
            f"the weights for {variable.path} have shape {value.shape}, but must have shape "
            f"{tuple(variable.shape)}: give a configuration and weights of the same model"
        )
    variable.assign(value)


def assign_weights(
    layer: keras.layers.Layer, arrays: Arrays, table: Table, random_layers: Collection[str] = ()
) -> None:
    """Assigns another library's arrays to the variables of a built layer or model.

    Args:
        layer: built layer or model.
        arrays: weights to read.
        table: mapping of weight names.
        random_layers: names of sub-layers whose variables keep their random initial values.

    Raises:
        UserError: an array is missing, or its shape differs from the variable's shape.
    """
    for variable in layer.weights:
        if not any(f"/{name}/" in f"/{variable.path}" for name in random_layers):
            assign(variable, _value(variable.path, arrays, table))


def find_entry(path: str, table: Table) -> tuple[Raw | np.ndarray | None, list[str], str]:
    """Looks up the entry for a variable in a mapping of weight names.

    Args:
        path: path of the variable in macaron_tf.
        table: mapping of weight names.

    Returns:
        A tuple of three values. The first value is the entry if its key matches the variable. The
        first value is `None` if the key matches the layer of the variable, or if there is no entry.
        The second value is the list of array or layer names in the other library, which is empty if
        there is no entry. The third value is the last part of `path`, such as "kernel".
    """
    block = re.search(r"block_(\d+)", path)
    index = int(block[1]) if block else 0
    pattern = "/" + re.sub(r"block_\d+", "block_{}", path)
    layer, _, variable = pattern.rpartition("/")
    for key, entry in table.items():
        if pattern.endswith(f"/{key}"):
            names = entry.names if isinstance(entry, Raw) else ()
            return entry, [name.format(index) for name in names], variable
        if layer.endswith(f"/{key}"):
            names = (entry,) if isinstance(entry, str) else entry
            return None, [name.format(index) for name in names], variable
    return None, [], variable


def _value(path: str, arrays: Arrays, table: Table) -> np.ndarray:
    entry, names, variable = find_entry(path, table)
    if isinstance(entry, np.ndarray):
        return entry
    if not names:
        raise UserError(
            f"the weights file contains nothing that matches the model's weight {path}: give a "
            "configuration and weights of the same model"
        )
    if entry is None:
        parts = [arrays.layer_array(name, variable) for name in names]
    else:
        parts = [entry.transform(arrays.array(name)) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """Another library's model class for a task, whose head consists of one or two layers.

    Attributes:
        class_suffix: suffix of the class name, such as "ForTokenClassification".
        pipeline: name of the task on the Hugging Face Hub.
        table: mapping of weight names for the layers of the head.
        has_pooler: whether the model class also contains the pooler in `Family.table`.
        activation: activation after the first layer of a two-layer head.
        activation_field: field of the configuration file that names the activation. If the file
            lacks this field, the activation is `activation`. An empty string means that the
            activation is fixed.
        settings: further settings for the configuration file of an exported model. Without these
            settings, the exported model would compute other outputs than the macaron_tf model.
    """

    class_suffix: str
    pipeline: str
    table: Table
    has_pooler: bool = False
    activation: str = "tanh"
    activation_field: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Conversion rules for one model type of another library, such as Hugging Face's "gpt2".

    A field is a setting in the other library's configuration file.

    Attributes:
        name: name of the model type in error messages.
        tokens: possible names of the token embedding array.
        table: mapping of weight names for the model without its token embeddings and heads.
        settings: dict mapping a macaron_tf setting to a tuple (field, default) or (field, default,
            values), where `values` maps each value of the field to a macaron_tf value. A default of
            `None` means that the field is required. Early versions of `save_pretrained` did not
            save fields with default values.
        fixed_settings: macaron_tf settings that are the same for all models of this type.
        derive_settings: function that computes further macaron_tf settings from the other library's
            settings.
        derive_fields: inverse of `derive_settings`, which computes fields from a macaron_tf
            configuration.
        required_fields: dict mapping a field to its only supported value.
        prefix: prefix of weight names in a model with a head, such as "bert.". The names of the
            head's weights, and all names in a model without a head, lack the prefix.
        transpose_kernels: whether kernels have the shape (outputs, inputs) (see `TorchArrays`).
        output_kernel: name of the output layer's kernel, which must equal the token embeddings.
        body_prefixes: prefixes of weight names. If a weight with such a prefix remains unread, the
            model is rejected.
        ignored_suffixes: suffixes of array names. Arrays with such a suffix may remain unread.
        starts: whether texts of a language model begin with a special token.
        class_prefix: prefix of the model class names, such as "Bert".
        tasks: dict mapping a macaron_tf model class to the other library's model class for the same
            task.
        head_dropout: name of the field that sets the dropout rate of a task head.
    """

    name: str
    tokens: tuple[str, ...]
    table: Table
    settings: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    fixed_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    derive_settings: Callable[[ForeignConfig], dict[str, Any]] = lambda config: {}
    derive_fields: Callable[[StackConfig], dict[str, Any]] = lambda config: {}
    required_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    transpose_kernels: bool = True
    output_kernel: str = ""
    body_prefixes: tuple[str, ...] = ()
    ignored_suffixes: tuple[str, ...] = ()
    starts: bool = True
    class_prefix: str = ""
    tasks: Mapping[type, TaskHead] = dataclasses.field(default_factory=dict)
    head_dropout: str = "classifier_dropout"

    def read_settings(self, config: ForeignConfig) -> dict[str, Any]:
        """Converts the other library's settings to a dict of macaron_tf settings.

        Raises:
            UserError: a value has no counterpart in macaron_tf.
        """
        config.require(self.required_fields)
        with refuse_damage(config.where, "use the configuration that belongs to the weights"):
            derived = self.derive_settings(config)
        return {**self.fixed_settings, **config.settings(self.settings), **derived}

    def arrays(self, directory: pathlib.Path) -> TorchArrays:
        """Reads the weights in a directory (see `read_state`)."""
        return TorchArrays(read_state(directory), self.prefix, self.transpose_kernels)

    def check_unread(self, arrays: Arrays) -> tuple[str, ...]:
        """Checks that all required arrays were read, and returns the names of unread arrays.

        The result leaves out arrays with a suffix in `ignored_suffixes`.

        Raises:
            UserError: the output layer differs from the token embeddings, or a weight with a prefix
                in `body_prefixes` was not read.
        """
        tokens = arrays.array(*self.tokens)
        if arrays.has(self.output_kernel) and not np.array_equal(
            arrays.array(self.output_kernel), tokens
        ):
            raise UserError(
                f"the {self.name} model has an output matrix {self.output_kernel} that differs "
                "from its token embeddings, but only tied embeddings can be read: give a model "
                "with tied embeddings"
            )
        unread = sorted(set(arrays.arrays) - arrays.names_read)
        unread = [name for name in unread if not name.endswith(self.ignored_suffixes)]
        for name in unread:
            if name.startswith(self.body_prefixes):
                raise UserError(
                    f"the weight {name} has no counterpart in macaron_tf, so this variant of "
                    f"{self.name} is not supported: give a checkpoint of another variant"
                )
        return tuple(unread)


def build_model(
    model_class: type[keras.Model], settings: Mapping, *arguments, **options
) -> keras.Model:
    """Builds a macaron_tf model, and creates its weights.

    Args:
        model_class: class of the model.
        settings: fields of the model's configuration.
        arguments, options: further constructor arguments of `model_class`.

    Raises:
        UserError: a setting is invalid.
    """
    try:
        config = (EncoderDecoderConfig if model_class is EncoderDecoder else EncoderConfig)(
            **settings
        )
    except ValueError as error:
        raise UserError(
            f"the model's configuration has settings that {model_class.__name__} of macaron_tf "
            f"does not support ({error}): give another model"
        ) from None
    network = model_class(config, *arguments, **options)
    network.build()
    return network
