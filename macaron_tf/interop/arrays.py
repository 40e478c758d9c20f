"""Reads another library's settings and arrays, and assigns the arrays to our variables.

"Foreign" means of the other library, "our" means of this one. A table of names maps the ends of our
variables' paths to foreign names; `{}` is a block's number:

    "block_{}/attention_0/attention/query_key_value": ("h.{}.query", "h.{}.key", "h.{}.value")
    "block_{}/attention_0/norm": "h.{}.ln_1"
    "embeddings/segments": Raw("segments.weight")

If the key is the end of a layer's path, the value is the name of a foreign layer, or of several
whose kernels our layer concatenates; `Arrays.part` converts each array to our layout. If the key is
the end of a variable's path, the value is a `Raw`: the name of an array, perhaps with a
transformation.
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

# Our names of activations, by those of PyTorch models.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


# Kinds of scaling of rotary positions, with the names of their values in `rotary_scaling`.
ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}


def check_files(directory: pathlib.Path, kind: str, *names: str) -> None:
    """Raises a UserError if a directory of some `kind` lacks one of its files."""
    for name in names:
        if not (directory / name).is_file():
            raise UserError(
                f"{directory} is not a {kind}: it has no {name}; give the model's whole folder"
            )


def json_bytes(value: Any) -> bytes:
    """Converts a value to the contents of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class ForeignConfig:
    """The settings of another library's model.

    Args:
        fields: the fields of its `config.json` or a similar file.
        where: name of that file in error messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: str):
        self.fields = fields
        self.where = where

    @classmethod
    def of_directory(cls, directory: pathlib.Path, model_types: Collection[str]) -> "ForeignConfig":
        """Reads a Hugging Face `config.json`, whose `model_type` must be one of `model_types`."""
        file = directory / "config.json"
        check_files(directory, "Hugging Face directory", file.name)
        config = cls(read_json(file), str(file))
        if config.fields.get("model_type") not in model_types:
            raise UserError(
                f"{file} has model_type {config.fields.get('model_type')!r}: only "
                f"{', '.join(map(repr, model_types))} can be read"
            )
        return config

    def get(self, field: str, default=None) -> Any:
        """Returns the value of a field, whatever its type."""
        return self.fields.get(field, default)

    def number(
        self, field: str, default: int | float | None = None, kind: type[int] | type[float] = int
    ) -> int | float:
        """Returns a field that is a number.

        Args:
            field: name of the field.
            default: value of a missing field, whose type the number must have; None: the field is
                required.
            kind: type of the number, if there is no default.

        Raises:
            UserError: the field is missing, or has another type.
        """
        kind = kind if default is None else type(default)
        value = self._required(field, default)
        if type(value) not in {int, kind}:  # not isinstance, because a bool is an int in Python
            wanted = "a whole number" if kind is int else "a number"
            raise UserError(f"{self.where} has {field}={value!r}: it must be {wanted}")
        return kind(value)

    def settings(self, names: Mapping[str, tuple]) -> dict[str, Any]:
        """Reads several settings; see `Family.settings` for the form of `names`."""
        return {
            ours: self.choice(theirs[0], theirs[2], theirs[1])
            if theirs[2:]
            else self.number(*theirs)
            for ours, theirs in names.items()
        }

    def choice(self, field: str, choices: Mapping[str, str], default: str | None = None) -> str:
        """Returns our name of a field's choice, such as an activation.

        Args:
            field: name of the field.
            choices: our names, by foreign name.
            default: foreign value of a missing field; None: the field is required.

        Raises:
            UserError: the field is missing, or not one of the choices.
        """
        name = self._required(field, default)
        if not isinstance(name, str) or name not in choices:
            raise UserError(
                f"{self.where} has {field}={name!r}: only {', '.join(choices)} can be read"
            )
        return choices[name]

    def require(self, needed: Mapping[str, Any]) -> None:
        """Raises a UserError if a field has another value than the one that our models need.

        Args:
            needed: the supported values, by field; a missing field passes.
        """
        for field, value in needed.items():
            if self.fields.get(field, value) != value:
                raise UserError(
                    f"{self.where} has {field}={self.fields[field]!r}: only {value!r} can be read"
                )

    def _required(self, field: str, default) -> Any:
        if field not in self.fields and default is None:
            raise UserError(f"{self.where} has no {field}: restore it")
        return self.fields.get(field, default)


class Arrays:
    """Another library's arrays, by name; it records which ones were read.

    A subclass defines `part(layer, variable)`, which returns the array of a foreign layer for our
    `variable` (kernel, gamma, ...) in our layout, and `kernel`, the suffix of the name of a linear
    layer's kernel.

    Attributes:
        arrays: the arrays.
        read: names of those that were read.
    """

    kernel: typing.ClassVar[str]

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.read: set[str] = set()

    def find(self, name: str) -> list[str]:
        """Returns the full names of the arrays that `name` matches."""
        return [name] if name in self.arrays else []

    def has(self, name: str | None) -> bool:
        """Whether an array has this name; False for None."""
        return name is not None and bool(self.find(name))

    def has_layer(self, layer: str | None) -> bool:
        """Whether a linear layer has this name; False for None."""
        return layer is not None and self.has(f"{layer}{self.kernel}")

    def array(self, *names: str) -> np.ndarray:
        """Returns the array of the first name that exists, and records that it was read.

        Raises:
            UserError: none exists, or several arrays match the name.
        """
        found = next(filter(None, map(self.find, names)), [])
        if len(found) != 1:
            several = f"{len(found)} weights called" if found else "no"
            raise UserError(
                f"the weights to be read have {several} {names[0]}: give the settings and weights "
                "of one model"
            )
        self.read.add(found[0])
        return self.arrays[found[0]]


class TorchArrays(Arrays):
    """The `state_dict` of a PyTorch model.

    Args:
        state: the arrays, by name.
        prefix: prefix that is removed from names.
        linear: whether kernels have the layout (outputs, inputs) of `Linear`, not (inputs, outputs)
            of `Conv1D`.
    """

    kernel = ".weight"

    def __init__(self, state: Mapping[str, np.ndarray], prefix: str = "", linear: bool = True):
        super().__init__({name.removeprefix(prefix): value for name, value in state.items()})
        self.linear = linear

    def part(self, layer: str, variable: str) -> np.ndarray:
        name = "bias" if variable in ("bias", "beta") else "weight"
        # Early conversions of BERT have TensorFlow's names of a LayerNorm's arrays.
        array = self.array(f"{layer}.{name}", f"{layer}.{variable}")
        return array.T if self.linear and variable == "kernel" else array


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the weights of a Hugging Face directory as float32, by their PyTorch names.

    They are in one file, or in several that an index lists, such as `model.safetensors.index.json`.

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
                raise UserError(f"{index} lists no weights: it has no weight_map; restore it")
            state: dict[str, np.ndarray] = {}
            for shard in sorted(set(map(str, shards.values()))):
                if not (directory / shard).is_file():
                    raise UserError(
                        f"{directory} has no {shard}, which {index.name} names: restore it"
                    )
                state |= _read_arrays(directory / shard)
            if absent := sorted(shards.keys() - state.keys()):
                raise UserError(f"{index} names {absent[0]}, which no file has: restore it")
            return state
    raise UserError(f"{directory} has no weights: it has neither {' nor '.join(names)}; restore it")


def _read_arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a safetensors or PyTorch file as float32."""
    tensors = file.suffix == ".safetensors"
    with needed(str(file), "torch"):
        if tensors:
            import safetensors.numpy
        else:
            import torch
    try:
        if tensors:
            state = safetensors.numpy.load_file(file)
            return {name: np.asarray(array, "float32") for name, array in state.items()}
        state = torch.load(file, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # PyTorch does not document what its unpickler raises
        reason = str(error).splitlines()[0]
        raise UserError(f"{file} cannot be read ({reason}): restore it") from None


# Score bias of the rows without a token that pad a table to a multiple of 8: their probability is
# 0, and those of the tokens do not change. float16 cannot represent -1e5.
UNUSED_TOKEN_BIAS = -1e4


Transform = Callable[[np.ndarray], np.ndarray]


class Raw:
    """Table entry of one of our variables: foreign arrays, transformed and concatenated.

    Args:
        names: full names of the arrays.
        transform: function of each array, to read it; None: it is copied.
        inverse: inverse of `transform`, to write it; None: it is copied if there is no `transform`.
    """

    def __init__(
        self, *names: str, transform: Transform | None = None, inverse: Transform | None = None
    ):
        self.names = names
        self.transform = transform or np.asarray
        self.inverse = inverse if transform or inverse else np.asarray


# An entry that is an array is assigned to the variable unchanged.
Table = Mapping[str, str | tuple[str, ...] | Raw | np.ndarray]


def transformer_layer(
    theirs: str,
    attention: Sequence[str],
    norm: str,
    feed_forward: Sequence[str],
    feed_forward_norm: str,
    cross: Sequence[str] = (),
    cross_norm: str = "",
    ours: str = "block_{}",
) -> Table:
    """Makes the table of a Transformer layer from the foreign names of its parts.

    Args:
        theirs: prefix of the foreign names.
        attention: layers of query, key and value, or one layer of all three; then the output.
        norm: the attention's norm.
        feed_forward: the inner layer, or both layers of a gated one; then the outer layer.
        feed_forward_norm: the feed-forward layer's norm.
        cross: the layers of the attention to the encoder, in the form of `attention`.
        cross_norm: its norm.
        ours: prefix of our paths.
    """
    parts = {
        "attention_0/attention/query_key_value": attention[:-1],
        # With fewer heads of keys than of queries, these two replace query_key_value.
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
    return {f"{ours}/{path}": tuple(theirs + n for n in names) for path, names in parts.items()}


def shortest_turn(values: Sequence[int]) -> tuple[int, ...]:
    """Returns the shortest tuple that, repeated, gives `values`."""
    sizes = range(1, len(values) + 1)
    turns = (tuple(values[:size]) for size in sizes)
    fitting = (t for t in turns if all(v == t[n % len(t)] for n, v in enumerate(values)))
    return next(fitting, (0,))


def rotary_settings(
    config: ForeignConfig, rope: Mapping[str, Any], field: str, usual: float
) -> dict[str, Any]:
    """Reads the base and the scaling of rotary positions.

    Args:
        config: the foreign settings.
        rope: the foreign `rope_parameters` or `rope_scaling`.
        field: name of the field in `config` with the base, if `rope` has none.
        usual: base if that field is missing too.
    """
    kind = rope.get("type", "default")  # the field's name in early versions
    found = {field: config.get(field, usual), "rope_type": kind, **rope}
    found = ForeignConfig(found, config.where)
    found.require({"partial_rotary_factor": 1.0})
    base = found.number("rope_theta" if "rope_theta" in rope else field, kind=float)
    kind = found.choice("rope_type", {name: name for name in ROPES})
    scaling = tuple(found.number(name, kind=float) for name in ROPES[kind])
    return {"rotary_base": base, "rotary_scaling": scaling}


def rotary_fields(base: float, scaling: Sequence[float] = ()) -> dict[str, Any]:
    """Makes the foreign `rope_parameters`; the inverse of `rotary_settings`."""
    kind = next(kind for kind, names in ROPES.items() if len(names) == len(scaling))
    return {"rope_theta": base, "rope_type": kind, **dict(zip(ROPES[kind], scaling, strict=True))}


def rows(ids: np.ndarray, size: int, missing: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    """Makes a transform that takes rows of a foreign table in the order of our ids.

    Args:
        ids: `(V',)` int, the foreign id for each of our ids; -1: none.
        size: number of rows of our table, at least V'.
        missing: value of the rows without a foreign one.
    """
    known = np.flatnonzero(ids >= 0)

    def chosen(array: np.ndarray) -> np.ndarray:
        if ids.max() >= len(array):
            raise UserError(
                f"the vocabulary has ids up to {ids.max()} and the model embeds only {len(array)} "
                "pieces: it is another model's vocabulary; restore the model's own"
            )
        table = np.full((size, *array.shape[1:]), missing, "float32")
        table[known] = array[ids[known]]
        return table

    return chosen


def say_spare_rows(tokens: np.ndarray, pieces: int) -> None:
    """Prints a note on stderr if a table of tokens has more rows than its vocabulary has pieces."""
    if len(tokens) > pieces:
        print(
            f"note: the model embeds {len(tokens):,} tokens and its vocabulary has {pieces:,}: the "
            "other rows are left out",
            file=sys.stderr,
        )


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Assigns an array to a variable; raises a UserError if its shape differs."""
    if tuple(variable.shape) != value.shape:
        raise UserError(
            f"the weights do not fit the model: {variable.path} has shape "
            f"{tuple(variable.shape)}, the weights to be read have {value.shape}; give the "
            "settings and weights of one model"
        )
    variable.assign(value)


def assign_weights(
    layer: keras.layers.Layer, arrays: Arrays, table: Table, drawn: Collection[str] = ()
) -> None:
    """Assigns arrays to the variables of a built layer or model by a table of names.

    Args:
        layer: the layer or model.
        arrays: the arrays.
        table: the table of names.
        drawn: names of parts of the model that keep their random initial values.

    Raises:
        UserError: an array is missing or has another shape.
    """
    for variable in layer.weights:
        if not any(f"/{part}/" in f"/{variable.path}" for part in drawn):
            assign(variable, _value(variable.path, arrays, table))


def entry_of(path: str, table: Table) -> tuple[Raw | np.ndarray | None, list[str], str]:
    """Looks up the table's entry for one of our variables.

    Returns:
        The entry of the variable itself, or None if the entry is of its layer; the foreign names of
        its arrays or layers, empty if there is no entry; and the variable's name within its layer.
    """
    block = re.search(r"block_(\d+)", path)
    number = int(block[1]) if block else 0
    ours = "/" + re.sub(r"block_\d+", "block_{}", path)
    layer, _, part = ours.rpartition("/")
    for key, entry in table.items():
        if ours.endswith(f"/{key}"):
            names = entry.names if isinstance(entry, Raw) else ()
            return entry, [name.format(number) for name in names], part
        if layer.endswith(f"/{key}"):
            names = (entry,) if isinstance(entry, str) else entry
            return None, [name.format(number) for name in names], part
    return None, [], part


def _value(path: str, arrays: Arrays, table: Table) -> np.ndarray:
    entry, names, part = entry_of(path, table)
    if isinstance(entry, np.ndarray):
        return entry
    if not names:
        raise UserError(
            f"the weights to be read have no counterpart of the model's {path}: give the settings "
            "and weights of one model"
        )
    if entry is None:
        parts = [arrays.part(name, part) for name in names]
    else:
        parts = [entry.transform(arrays.array(name)) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """A family's model for a task: the body with a head of one or two layers.

    Attributes:
        ending: suffix of the class's name, such as "ForTokenClassification".
        pipeline: the hub's name of the task.
        table: table of the head's layers.
        pooled: whether the body includes its pooler.
        activation: activation of the head's first layer, if it has two.
        activation_field: foreign setting that names the activation; `activation` is its default.
            "": the activation is fixed.
        settings: further foreign settings with which the head computes the same as ours.
    """

    ending: str
    pipeline: str
    table: Table
    pooled: bool = False
    activation: str = "tanh"
    activation_field: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Describes how to convert one kind of models: a `model_type` of Hugging Face, or another's.

    Attributes:
        name: name of such models in error messages.
        tokens: possible names of the array of token embeddings.
        table: table of names of the other parts.
        settings: our names of settings, each with (foreign name, default), or for a choice with
            (foreign name, default, our names by foreign ones). A default None means that the field
            is required; the others are needed because early `save_pretrained` left out defaults.
        fixed: our settings that are the same in all such models.
        derived: function of the foreign settings that returns further settings of ours.
        underived: its inverse, a function of our configuration that returns foreign settings.
        required: foreign settings without a counterpart in ours, with the only supported values.
        prefix: prefix of the body's names in a model with a head.
        linear: see `TorchArrays`.
        output: name of the output layer's array, which must equal the token embeddings.
        body: prefixes of the names of weights that must all be read.
        repeated: suffixes of names of arrays that need not be read.
        starts: for language models: whether texts begin with a special token.
        classes: prefix of the names of its classes.
        tasks: its models for tasks, by our class for the same task.
        head_dropout: name of the foreign setting of the dropout in a task's head.
    """

    name: str
    tokens: tuple[str, ...]
    table: Table
    settings: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    derived: Callable[[ForeignConfig], dict[str, Any]] = lambda config: {}
    underived: Callable[[StackConfig], dict[str, Any]] = lambda config: {}
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    linear: bool = True
    output: str = ""
    body: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    starts: bool = True
    classes: str = ""
    tasks: Mapping[type, TaskHead] = dataclasses.field(default_factory=dict)
    head_dropout: str = "classifier_dropout"

    def read_settings(self, config: ForeignConfig) -> dict[str, Any]:
        """Converts foreign settings to ours; a value without a counterpart is a UserError."""
        config.require(self.required)
        with refuse_damage(config.where, "restore it"):
            derived = self.derived(config)
        return {**self.fixed, **config.settings(self.settings), **derived}

    def arrays(self, directory: pathlib.Path) -> TorchArrays:
        """Reads the weights of a directory; see `read_state`."""
        return TorchArrays(read_state(directory), self.prefix, self.linear)

    def check_rest(self, arrays: Arrays) -> tuple[str, ...]:
        """Checks that the body was read completely, and returns the names of unread arrays.

        Raises:
            UserError: the output layer differs from the table of tokens, or a weight of the body
                was not read.
        """
        tokens = arrays.array(*self.tokens)
        if arrays.has(self.output) and not np.array_equal(arrays.array(self.output), tokens):
            raise UserError(
                f"the {self.name} model's {self.output} differs from its token embeddings: only "
                "models with one table for both can be read"
            )
        unread = sorted(set(arrays.arrays) - arrays.read)
        unread = [name for name in unread if not name.endswith(self.repeated)]
        for left in unread:
            if left.startswith(self.body):
                raise UserError(
                    f"the {self.name} model has {left}, which ours does not have: only models "
                    "without it can be read"
                )
        return tuple(unread)


def built(model: type[keras.Model], settings: Mapping, *arguments, **options) -> keras.Model:
    """Builds our model with `settings`; raises a UserError if a setting is out of range."""
    try:
        config = (EncoderDecoderConfig if model is EncoderDecoder else EncoderConfig)(**settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}") from None
    network = model(config, *arguments, **options)
    network.build()
    return network
