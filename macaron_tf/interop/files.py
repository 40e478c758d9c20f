"""The files of other libraries' models: their settings, and their arrays by name."""

import json
import pathlib
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.layers.dense import activation

# Our activations, by the names of PyTorch models.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read_json(file: pathlib.Path, kind: type = dict) -> Any:
    """The object (or the list, by `kind`) in a JSON file; a UserError where it holds none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}.") from None
    if not isinstance(value, kind):
        raise UserError(f"{file} holds no {kind.__name__}.")
    return value


class ForeignConfig:
    """The settings of another library's model; every reader raises a UserError naming the field.

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
        if not file.is_file():
            raise UserError(f"{directory} is no Hugging Face directory: it has no config.json.")
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

    def numbers(self, names: Mapping[str, tuple[str, int | float]]) -> dict[str, int | float]:
        """Our settings, from our name -> (their name, default)."""
        return {ours: self.number(*theirs) for ours, theirs in names.items()}

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
    """Another library's arrays by name; remembers which were read."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays
        self.read: set[str] = set()

    def find(self, name: str) -> list[str]:
        """The whole names of the arrays that `name` stands for."""
        return [name] if name in self.arrays else []

    def has(self, name: str) -> bool:
        """Whether there is such an array."""
        return bool(self.find(name))

    def has_layer(self, layer: str) -> bool:
        """Whether there is a linear layer of that name."""
        raise NotImplementedError

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

    def part(self, layer: str, variable: str) -> np.ndarray:
        """One of a layer's arrays as our layers keep it.

        Args:
            layer: their name.
            variable: our name: kernel, bias, gamma, beta, scale or table.
        """
        raise NotImplementedError

    def unread(self) -> list[str]:
        """Names of the arrays that were not read, sorted."""
        return sorted(set(self.arrays) - self.read)


class TorchArrays(Arrays):
    """The `state_dict` of a PyTorch model.

    Args:
        prefix: of names, taken off where it stands.
        linear: whether kernels are `Linear`'s (outputs, inputs), not `Conv1D`'s (inputs, outputs).
    """

    # Early conversions of BERT name a LayerNorm's arrays as TensorFlow does.
    _NAMES: typing.ClassVar = {
        "kernel": ("weight",),
        "bias": ("bias",),
        "gamma": ("weight", "gamma"),
        "beta": ("bias", "beta"),
        "scale": ("weight",),
        "table": ("weight",),
    }

    def __init__(self, state: Mapping[str, np.ndarray], prefix: str = "", linear: bool = True):
        super().__init__({name.removeprefix(prefix): value for name, value in state.items()})
        self.linear = linear

    def has_layer(self, layer: str) -> bool:
        return self.has(f"{layer}.weight")

    def part(self, layer: str, variable: str) -> np.ndarray:
        array = self.array(*(f"{layer}.{name}" for name in self._NAMES[variable]))
        return array.T if self.linear and variable == "kernel" else array


class KerasArrays(Arrays):
    """Weights of Keras layers by path; a name is the end of a path."""

    @classmethod
    def of_layers(cls, layers: Mapping[str, keras.layers.Layer]) -> "KerasArrays":
        """The weights of built layers of Keras 3, with the given names in front of their paths."""
        return cls(
            {
                f"{name}/{weight.path.partition('/')[2]}": keras.ops.convert_to_numpy(weight)
                for name, layer in layers.items()
                for weight in layer.weights
            }
        )

    def find(self, name: str) -> list[str]:
        return [path for path in self.arrays if f"/{path}".endswith(f"/{name}")]

    def has_layer(self, layer: str) -> bool:
        return self.has(f"{layer}/kernel")

    def part(self, layer: str, variable: str) -> np.ndarray:
        if variable == "table":
            return self.array(f"{layer}/embeddings")
        array = self.array(f"{layer}/{variable}")
        if variable == "bias":
            return array.reshape(-1)  # (H, d) -> (H d,)
        if variable == "kernel":
            # Queries, keys and values have biases (H, d): (D, H, d) -> (D, H d); the output's
            # (H, d, D) -> (H d, D).
            heads_last = self.array(f"{layer}/bias").ndim > 1
            return array.reshape((len(array), -1) if heads_last else (-1, array.shape[-1]))
        return array


def activation_name(function: Callable | str | None) -> str:
    """Our name of a Keras activation, known by its values, since many are lambdas.

    Args:
        function: takes a float32 array; or Keras's name of it, None for the linear one.

    Raises:
        UserError: we have no such activation.
    """
    points = np.linspace(-4, 4, 33, dtype="float32")
    values = np.asarray(keras.activations.get(function)(points))
    names = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "linear")
    for name in names:
        ours = keras.ops.convert_to_numpy(activation(name)(points))
        # The two forms of GELU differ by up to 5e-4.
        if np.allclose(values, ours, atol=2e-6, rtol=0):
            return name
    raise UserError(
        f"the model to be read has the activation {function}: only {', '.join(names)} can be read."
    )


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """The weights of a Hugging Face directory, float32, by PyTorch's names.

    Raises:
        UserError: there is neither `model.safetensors` nor `pytorch_model.bin`, the file cannot be
            read, or the package that reads it is not installed.
    """
    safe, pickled = directory / "model.safetensors", directory / "pytorch_model.bin"
    if safe.is_file():
        return _read_safetensors(safe)
    if pickled.is_file():
        return _read_pickle(pickled)
    if list(directory.glob("*.index.json")):
        raise UserError(
            f"{directory} holds its weights in several files: save them as one, with "
            "save_pretrained(..., max_shard_size='100GB')."
        )
    raise UserError(
        f"{directory} holds no weights: it has neither model.safetensors nor pytorch_model.bin."
    )


def _read_safetensors(file: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError(f"{file} needs a package: pip install safetensors.") from None
    try:
        state = safetensors.numpy.load_file(file)
    except safetensors.SafetensorError as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    return {name: np.asarray(array, "float32") for name, array in state.items()}


def _read_pickle(file: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{file} is PyTorch's own format: pip install torch, or save the model as "
            "model.safetensors."
        ) from None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch lets through whatever its unpickler raises
        raise UserError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    return {name: tensor.float().numpy() for name, tensor in state.items()}


def read_checkpoint(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """The variables of the one TensorFlow checkpoint in a directory, without optimizer slots."""
    prefix = tf.train.latest_checkpoint(directory)
    if prefix is None:
        files = list(directory.glob("*.index"))
        if len(files) != 1:
            raise UserError(
                f"{directory} has {len(files)} checkpoints (files ending in .index): leave one."
            )
        prefix = str(files[0].with_suffix(""))
    reader, value = tf.train.load_checkpoint(prefix), "/.ATTRIBUTES/VARIABLE_VALUE"
    return {
        name.removesuffix(value): reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.endswith(value) and "OPTIMIZER_SLOT" not in name
    }
