"""What Hugging Face's `save_pretrained` writes: settings and PyTorch's arrays."""

import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.encoder_weights import Dense, Norm

# Ours, by their names.
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


def read_config(directory: pathlib.Path, model_types: Collection[str]) -> dict:
    """The fields of `config.json`.

    Args:
        directory: holds it.
        model_types: what its field `model_type` may be.

    Raises:
        UserError: there is no such file, or it is of another model.
    """
    file = directory / "config.json"
    if not file.is_file():
        raise UserError(f"{directory} is no Hugging Face directory: it has no config.json.")
    config = read_json(file)
    if config.get("model_type") not in model_types:
        raise UserError(
            f"{file} has model_type {config.get('model_type')!r}: only "
            f"{', '.join(map(repr, model_types))} can be read."
        )
    return config


def read_number(
    config: Mapping[str, Any],
    field: str,
    kind: type[int] | type[float],
    where: str,
    default: int | float | None = None,
) -> int | float:
    """A number among the settings of a model.

    Args:
        config: the settings.
        field: its name.
        kind: `int`, or `float`, which a whole number is too.
        where: what the sentence calls the settings: their file.
        default: where there is no such field; None = it must be there.

    Raises:
        UserError: there is none, or it is no such number.
    """
    value = _field(config, field, where, default)
    if type(value) not in {int, kind}:  # nor a bool, which is an int to Python
        wanted = "a whole number" if kind is int else "a number"
        raise UserError(f"{where} has {field}={value!r}: it must be {wanted}.")
    return kind(value)


def read_choice(
    config: Mapping[str, Any],
    field: str,
    choices: Mapping[str, str],
    where: str,
    default: str | None = None,
) -> str:
    """Our name of what a model's settings name, such as an activation.

    Args:
        config, field, where, default: as of `read_number`.
        choices: ours, by their names.

    Raises:
        UserError: there is no such field, or ours has no such choice.
    """
    name = _field(config, field, where, default)
    if not isinstance(name, str) or name not in choices:
        raise UserError(f"{where} has {field}={name!r}: only {', '.join(choices)} can be read.")
    return choices[name]


def _field(config: Mapping[str, Any], field: str, where: str, default) -> Any:
    if field not in config and default is None:
        raise UserError(f"{where} has no {field}.")
    return config.get(field, default)


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """The weights, float32, from `model.safetensors` or `pytorch_model.bin`, by PyTorch's names.

    Raises:
        UserError: there is neither file, it cannot be read, or the package that reads it is not
            installed.
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
    return {name: _float32(array) for name, array in state.items()}


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
    # PyTorch raises whatever its unpickler or archive reader comes to.
    except Exception as error:
        raise UserError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    return {name: _float32(tensor.float().numpy()) for name, tensor in state.items()}


def _float32(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, "float32")


class TorchArrays:
    """PyTorch's arrays by name, with `/` for `.`; remembers what was read.

    Args:
        state: arrays by PyTorch's names.
    """

    def __init__(self, state: Mapping[str, np.ndarray]):
        self.state = state
        self.read: set[str] = set()

    def has(self, path: str) -> bool:
        """Whether there is an array of exactly that name."""
        return path.replace("/", ".") in self.state

    def array(self, *paths: str) -> np.ndarray:
        """The first of these that there is.

        Raises:
            UserError: there is none.
        """
        path = next((path for path in paths if self.has(path)), None)
        if path is None:
            raise UserError(f"the weights to be read have no {paths[0].replace('/', '.')}.")
        name = path.replace("/", ".")
        self.read.add(name)
        return self.state[name]

    def dense(self, path: str) -> Dense:
        """A Linear; PyTorch keeps its kernel as (outputs, inputs)."""
        return self.array(f"{path}/weight").T, self.array(f"{path}/bias")

    def norm(self, path: str) -> Norm:
        """A LayerNorm, by its names of today or by those of BERT's first conversions."""
        return (
            self.array(f"{path}/weight", f"{path}/gamma"),
            self.array(f"{path}/bias", f"{path}/beta"),
        )
