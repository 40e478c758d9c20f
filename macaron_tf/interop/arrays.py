"""Another library's settings and arrays, and the one way from them into our variables.

A table of names maps the ends of our paths to their names, `{}` being a block's number:

    "block_{}/attention_0/attention/query_key_value": ("h.{}.query", "h.{}.key", "h.{}.value")
    "block_{}/attention_0/norm": "h.{}.ln_1"
    "embeddings/segments": Raw("segments.weight")

The end of a layer's path stands for a layer of theirs, or for several that ours keeps side by side
in one; `Arrays.part` brings their kernels into our layout. The end of a variable's path stands for
an array itself, transformed where the layout is the family's own.
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

# Our activations, by the names of PyTorch models.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


# Ways to scale rotary positions, with their numbers in the order of `rotary_scaling`.
ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}


def check_files(directory: pathlib.Path, kind: str, *names: str) -> None:
    """Refuses a directory that is not of a kind, for want of a file."""
    for name in names:
        if not (directory / name).is_file():
            raise UserError(f"{directory} is no {kind}: it has no {name}.")


def json_bytes(value: Any) -> bytes:
    """A value as the contents of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class ForeignConfig:
    """The settings of another library's model.

    Args:
        fields: as `config.json` or the like holds them.
        where: the name of that file in errors.
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
                f"{', '.join(map(repr, model_types))} can be read."
            )
        return config

    def get(self, field: str, default=None) -> Any:
        """A field as it stands."""
        return self.fields.get(field, default)

    def number(
        self, field: str, default: int | float | None = None, kind: type[int] | type[float] = int
    ) -> int | float:
        """A number of the kind of `default`, which stands for a missing field; None = required."""
        kind = kind if default is None else type(default)
        value = self._required(field, default)
        if type(value) not in {int, kind}:  # nor a bool, which is an int to Python
            wanted = "a whole number" if kind is int else "a number"
            raise UserError(f"{self.where} has {field}={value!r}: it must be {wanted}.")
        return kind(value)

    def settings(self, names: Mapping[str, tuple]) -> dict[str, Any]:
        """Our settings, from our name -> (their name, default) or (..., our names of choices)."""
        return {
            ours: self.choice(theirs[0], theirs[2], theirs[1])
            if theirs[2:]
            else self.number(*theirs)
            for ours, theirs in names.items()
        }

    def choice(self, field: str, choices: Mapping[str, str], default: str | None = None) -> str:
        """Our name for their choice, such as an activation; see `number` for `default`."""
        name = self._required(field, default)
        if not isinstance(name, str) or name not in choices:
            raise UserError(
                f"{self.where} has {field}={name!r}: only {', '.join(choices)} can be read."
            )
        return choices[name]

    def require(self, needed: Mapping[str, Any]) -> None:
        """Refuses a model with other values of settings that our models do not have."""
        for field, value in needed.items():
            if self.fields.get(field, value) != value:
                raise UserError(
                    f"{self.where} has {field}={self.fields[field]!r}: only {value!r} can be read."
                )

    def _required(self, field: str, default) -> Any:
        if field not in self.fields and default is None:
            raise UserError(f"{self.where} has no {field}.")
        return self.fields.get(field, default)


class Arrays:
    """Another library's arrays by name; remembers which were read.

    A subclass has `part(layer, variable)`, the array of their layer for our `variable` (kernel,
    gamma, ...) as ours keep it, and `kernel`, how a linear layer's kernel is named behind it.
    """

    kernel: typing.ClassVar[str]

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.read: set[str] = set()

    def find(self, name: str) -> list[str]:
        """The whole names of the arrays that `name` stands for."""
        return [name] if name in self.arrays else []

    def has(self, name: str | None) -> bool:
        """Whether there is such an array; False of None."""
        return name is not None and bool(self.find(name))

    def has_layer(self, layer: str | None) -> bool:
        """Whether there is a linear layer of that name; False of None."""
        return layer is not None and self.has(f"{layer}{self.kernel}")

    def array(self, *names: str) -> np.ndarray:
        """The array of the first of these names that there is.

        Raises:
            UserError: there is none, or a name stands for several.
        """
        found = next(filter(None, map(self.find, names)), [])
        if len(found) != 1:
            several = f"{len(found)} weights called" if found else "no"
            raise UserError(f"the weights to be read have {several} {names[0]}.")
        self.read.add(found[0])
        return self.arrays[found[0]]


class TorchArrays(Arrays):
    """The `state_dict` of a PyTorch model.

    Args:
        prefix: of names, taken off where it stands.
        linear: whether kernels are `Linear`'s (outputs, inputs), not `Conv1D`'s (inputs, outputs).
    """

    kernel = ".weight"

    def __init__(self, state: Mapping[str, np.ndarray], prefix: str = "", linear: bool = True):
        super().__init__({name.removeprefix(prefix): value for name, value in state.items()})
        self.linear = linear

    def part(self, layer: str, variable: str) -> np.ndarray:
        name = "bias" if variable in ("bias", "beta") else "weight"
        # Early conversions of BERT name a LayerNorm's arrays as TensorFlow does.
        array = self.array(f"{layer}.{name}", f"{layer}.{variable}")
        return array.T if self.linear and variable == "kernel" else array


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """The weights of a Hugging Face directory, float32, by PyTorch's names.

    They lie in one file, or in several that an index names: `model.safetensors.index.json`.
    """
    names = ("model.safetensors", "pytorch_model.bin")
    for name in names:
        index = directory / f"{name}.index.json"
        if (directory / name).is_file():
            return _read_arrays(directory / name)
        if index.is_file():
            shards = ForeignConfig(read_json(index), str(index)).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise UserError(f"{index} names no weights: it has no weight_map.")
            state: dict[str, np.ndarray] = {}
            for shard in sorted(set(map(str, shards.values()))):
                if not (directory / shard).is_file():
                    raise UserError(f"{directory} has no {shard}, which {index.name} names.")
                state |= _read_arrays(directory / shard)
            if absent := sorted(shards.keys() - state.keys()):
                raise UserError(f"{index} names {absent[0]}, which no file holds.")
            return state
    raise UserError(f"{directory} holds no weights: it has neither {' nor '.join(names)}.")


def _read_arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of one file of safetensors or PyTorch, float32."""
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
    except Exception as error:  # PyTorch lets through whatever its unpickler raises
        raise UserError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None


# Tables end at a multiple of 8 rows. This bias gives the rows of no token a probability of 0 and
# leaves the others' as they were; float16 holds no -1e5.
UNUSED_TOKEN_BIAS = -1e4


Transform = Callable[[np.ndarray], np.ndarray]


class Raw:
    """Arrays by their whole names, each transformed, then side by side.

    Args:
        inverse: of `transform`, to write them; without both they are copied.
    """

    def __init__(
        self, *names: str, transform: Transform | None = None, inverse: Transform | None = None
    ):
        self.names = names
        self.transform = transform or np.asarray
        self.inverse = inverse if transform or inverse else np.asarray


# Entries that are arrays are assigned as they are.
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
    """The table of a Transformer layer.

    Args:
        theirs: prefix of their names.
        attention: query, key and value, or the one layer of all three; then the output.
        feed_forward: the inner layer, or the two of a gated one; then the outer layer.
        cross: as `attention`, of an attention to the encoder.
        ours: prefix of our paths.
    """
    parts = {
        "attention_0/attention/query_key_value": attention[:-1],
        # Of fewer heads of keys than of queries.
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
    """The shortest tuple whose repetition gives `values`."""
    sizes = range(1, len(values) + 1)
    turns = (tuple(values[:size]) for size in sizes)
    fitting = (t for t in turns if all(v == t[n % len(t)] for n, v in enumerate(values)))
    return next(fitting, (0,))


def rotary_settings(
    config: ForeignConfig, rope: Mapping[str, Any], field: str, usual: float
) -> dict[str, Any]:
    """The base and the scaling of rotary positions.

    Args:
        rope: their `rope_parameters` or `rope_scaling`.
        field: of the base where `rope` has none; `usual` stands for a missing field.
    """
    kind = rope.get("type", "default")  # of early versions
    found = {field: config.get(field, usual), "rope_type": kind, **rope}
    found = ForeignConfig(found, config.where)
    found.require({"partial_rotary_factor": 1.0})
    base = found.number("rope_theta" if "rope_theta" in rope else field, kind=float)
    kind = found.choice("rope_type", {name: name for name in ROPES})
    scaling = tuple(found.number(name, kind=float) for name in ROPES[kind])
    return {"rotary_base": base, "rotary_scaling": scaling}


def rotary_fields(base: float, scaling: Sequence[float] = ()) -> dict[str, Any]:
    """The inverse of `rotary_settings`: `rope_parameters`."""
    kind = next(kind for kind, names in ROPES.items() if len(names) == len(scaling))
    return {"rope_theta": base, "rope_type": kind, **dict(zip(ROPES[kind], scaling, strict=True))}


def rows(ids: np.ndarray, size: int, missing: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    """A transform: rows `ids (V',)` of an array, `missing` at id -1 and up to `size` rows."""
    known = np.flatnonzero(ids >= 0)

    def chosen(array: np.ndarray) -> np.ndarray:
        if ids.max() >= len(array):
            raise UserError(
                f"the vocabulary has ids up to {ids.max()} and the model embeds only {len(array)} "
                "pieces: it is another model's vocabulary."
            )
        table = np.full((size, *array.shape[1:]), missing, "float32")
        table[known] = array[ids[known]]
        return table

    return chosen


def say_spare_rows(tokens: np.ndarray, pieces: int) -> None:
    """Says on stderr that a table of tokens has rows for which its vocabulary has none."""
    if len(tokens) > pieces:
        print(
            f"note: the model embeds {len(tokens):,} tokens and its vocabulary has {pieces:,}: the "
            "other rows are left out",
            file=sys.stderr,
        )


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Sets a variable; refuses another shape."""
    if tuple(variable.shape) != value.shape:
        raise UserError(
            f"the weights do not fit the model: {variable.path} has shape "
            f"{tuple(variable.shape)}, the weights to be read have {value.shape}."
        )
    variable.assign(value)


def assign_weights(
    layer: keras.layers.Layer, arrays: Arrays, table: Table, drawn: Collection[str] = ()
) -> None:
    """Sets the variables of a built layer or model by a table of names.

    Args:
        drawn: names of parts of the model that keep their initial values.
    """
    for variable in layer.weights:
        if not any(f"/{part}/" in f"/{variable.path}" for part in drawn):
            assign(variable, _value(variable.path, arrays, table))


def entry_of(path: str, table: Table) -> tuple[Raw | np.ndarray | None, list[str], str]:
    """The table's entry for a variable of ours.

    Returns:
        The entry of the variable itself, or None; their names, of arrays or of layers; the
        variable's name in its layer. No names and None: the table has nothing for it.
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
        raise UserError(f"the weights to be read have nothing for the model's {path}.")
    if entry is None:
        parts = [arrays.part(name, part) for name in names]
    else:
        parts = [entry.transform(arrays.array(name)) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """A family's model for a task, the body with layers over it.

    Attributes:
        ending: of its class's name.
        pipeline: the task as the hub calls it.
        table: the layers over the body.
        pooled: whether the body has its pooler.
        activation: of the layer before the last, where there is one.
        activation_field: the setting of theirs that names the activation, which is `activation`
            where it is missing; "" = they have no other.
        settings: further settings of theirs, with which the head computes what ours does.
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
    """The models of one `model_type` of Hugging Face, or of another library.

    Attributes:
        name: of such models, in errors.
        tokens: names of the array of token embeddings, one of which there is.
        table: of the other parts.
        settings: our name -> (their name, default), since `save_pretrained` once left out
            defaults, None = required; of choices, (their name, default, our name of each).
        fixed: settings of ours, the same in all such models.
        derived: further settings of ours from theirs.
        underived: the inverse: further settings of theirs from ours.
        required: settings that our model does not have, and the values that fit it.
        prefix: before names where there is a head.
        linear: see `TorchArrays`.
        output: the array of an output layer that repeats the token embeddings.
        body: how the names of weights begin that must be read.
        repeated: ends of names that do not count.
        starts: of language models, whether a text begins behind a token of its own.
        classes: how the names of its classes begin.
        tasks: its models for tasks that ours learn too, by our class.
        head_dropout: their setting for the dropout in a task's head.
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
        """Our settings; a UserError where theirs have no place in our model."""
        config.require(self.required)
        with refuse_damage(config.where, "restore it"):
            derived = self.derived(config)
        return {**self.fixed, **config.settings(self.settings), **derived}

    def arrays(self, directory: pathlib.Path) -> TorchArrays:
        """The weights of a directory."""
        return TorchArrays(read_state(directory), self.prefix, self.linear)

    def check_rest(self, arrays: Arrays) -> tuple[str, ...]:
        """Names of the arrays that were not read, all of them of other heads.

        Raises:
            UserError: the output layer, where it is kept, is not the table of tokens, or a weight
                of the body was not read.
        """
        tokens = arrays.array(*self.tokens)
        if arrays.has(self.output) and not np.array_equal(arrays.array(self.output), tokens):
            raise UserError(
                f"the {self.name} model's {self.output} is not its token embeddings: ours has one "
                "table for both."
            )
        unread = sorted(set(arrays.arrays) - arrays.read)
        unread = [name for name in unread if not name.endswith(self.repeated)]
        for left in unread:
            if left.startswith(self.body):
                raise UserError(f"the {self.name} model has {left}, for which ours has no place.")
        return tuple(unread)


def built(model: type[keras.Model], settings: Mapping, *arguments, **options) -> keras.Model:
    """Our model of another one's `settings`; a UserError where these are out of our range."""
    try:
        config = (EncoderDecoderConfig if model is EncoderDecoder else EncoderConfig)(**settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    network = model(config, *arguments, **options)
    network.build()
    return network
