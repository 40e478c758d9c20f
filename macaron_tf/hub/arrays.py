"""Weight arrays of another library's model, and their assignment to macaron_tf variables.

A mapping of weight names (type `Table`) maps the end of a path in macaron_tf to a name in the other
library. In both, `{}` stands for the index of a block:

    "block_{}/attention_0/attention/query_key_value": ("h.{}.query", "h.{}.key", "h.{}.value")
    "block_{}/attention_0/norm": "h.{}.ln_1"
    "embeddings/segments": Raw("segments.weight")

If the key is the end of a layer's path, the value is the name of a layer in the other library, or a
tuple of layer names. The kernels of several layers are concatenated, and so are their biases. If
the key is the end of a variable's path, the value is an array, which is assigned unchanged, or a
`Raw`: the names of one or more arrays and an optional transformation. A function as the value gets
the whole path, and returns one of these, or `None` for a path without a counterpart.

`assign_weights` reads by such a mapping, and `layer_state` writes by it.
"""

import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from macaron_tf.errors import UserError, first_line, needed
from macaron_tf.io.paths import read_json

_MEND = "download or copy the weights again"
_SAME = "give a configuration and weights of the same model"


class Arrays:
    """Weight arrays by PyTorch's names, with a record of the arrays read so far.

    Args:
        prefix: prefix to remove from the names.
        transpose_kernels: whether kernels have the shape (outputs, inputs), as in PyTorch's
            `Linear`, instead of (inputs, outputs), as in transformers' `Conv1D`.
        by_end: whether a search finds every name whose last parts, between dots, are the given
            name.
    """

    def __init__(
        self,
        state: Mapping[str, np.ndarray],
        prefix: str = "",
        transpose_kernels: bool = True,
        by_end: bool = False,
    ):
        self.arrays = {name.removeprefix(prefix): value for name, value in state.items()}
        self.transpose_kernels, self.by_end = transpose_kernels, by_end
        self.names_read: set[str] = set()

    def find(self, name: str) -> list[str]:
        """Returns the full names of all arrays called `name`."""
        if self.by_end:
            return [full for full in self.arrays if f".{full}".endswith(f".{name}")]
        return [name] if name in self.arrays else []

    def has(self, name: str) -> bool:
        return bool(self.find(name))

    def has_layer(self, layer: str | None) -> bool:
        """Returns whether the kernel of `layer` exists. For `None`, the result is False."""
        return layer is not None and self.has(f"{layer}.weight")

    def array(self, *names: str) -> np.ndarray:
        """Returns the array of the first name that matches, and records that the array was read."""
        matches = next(filter(None, map(self.find, names)), [])
        if len(matches) != 1:
            found = f"{len(matches)} arrays" if matches else "no array"
            raise UserError(f"the weights contain {found} called {names[0]}, not one: {_SAME}")
        self.names_read.add(matches[0])
        return self.arrays[matches[0]]


def read_state(directory: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the weights in a Hugging Face directory as a dict mapping name to float32 array.

    The weights may be in one file, or in several files that an index such as
    `model.safetensors.index.json` lists. If there are safetensors files, `pytorch_model.bin` is not
    read.
    """
    names = ("model.safetensors", "pytorch_model.bin")
    for name in names:
        index = directory / f"{name}.index.json"
        if (directory / name).is_file():
            return _read_arrays(directory / name)
        if index.is_file():
            shards = read_json(index, mend=_MEND, weight_map=dict)["weight_map"]
            state: dict[str, np.ndarray] = {}
            for shard in sorted({*map(str, shards.values())}):
                state |= _read_arrays(directory / shard)
            return state
    raise UserError(f"{directory} contains no weights, neither {' nor '.join(names)}: {_MEND}")


def _read_arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads a safetensors or PyTorch file as a dict mapping name to float32 array."""
    is_safetensors = file.suffix == ".safetensors"
    with needed(str(file), "torch"):
        if is_safetensors:
            import safetensors
        else:
            import torch
    try:
        if is_safetensors:
            with safetensors.safe_open(file, "numpy") as tensors:
                names = tensors.keys()
                _refuse_quantized(file, {n: tensors.get_slice(n).get_dtype() for n in names})
                return {name: np.asarray(tensors.get_tensor(name), "float32") for name in names}
        state = torch.load(file, map_location="cpu", weights_only=True)
        _refuse_quantized(file, {name: str(tensor.dtype) for name, tensor in state.items()})
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except UserError:
        raise
    except Exception as error:  # PyTorch does not document what its unpickler raises
        raise UserError(f"{file} cannot be read ({first_line(error)}): {_MEND}") from None


# Names of the floating-point types in safetensors and in PyTorch, except types of 8 and fewer bits.
_FLOATS = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")


def _refuse_quantized(file: pathlib.Path, dtypes: Mapping[str, str]) -> None:
    """Raises a UserError if a weight is quantized, and so means nothing without its scales."""
    for name, dtype in dtypes.items():
        if name.endswith(("weight", "weight_packed")) and dtype.rpartition(".")[2] not in _FLOATS:
            found = f"the quantized weight {name} of type {dtype}"
            raise UserError(f"{file} has {found}: give the model before quantization")


# Output bias of the unused rows that pad an embedding table to a multiple of 8. With this bias, the
# unused rows have probability 0, and the probabilities of the tokens do not change. float16 cannot
# represent -1e5.
_UNUSED_TOKEN_BIAS = -1e4


Transform = Callable[[np.ndarray], np.ndarray]


class Raw:
    """Entry for a single variable in a mapping of weight names.

    The value of the variable comes from one or more arrays of another library. Several arrays are
    concatenated along the last axis.

    Args:
        names: full names of the arrays, with `{}` for the index of a block.
        transform: function that converts each array before the concatenation.
        inverse: inverse of `transform`, for writing arrays.
    """

    def __init__(
        self, *names: str, transform: Transform = np.asarray, inverse: Transform = np.asarray
    ):
        self.names, self.transform, self.inverse = names, transform, inverse


# Entry of a mapping of weight names, and the mapping; see the beginning of this module.
Entry: TypeAlias = str | tuple[str, ...] | Raw | np.ndarray | None
Table = Mapping[str, Entry | Callable[[str], Entry]]


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
        feed_forward: names of the inner and the outer linear layer in the feed-forward sub-layer. A
            gated feed-forward sub-layer has three names: two inner layers and the outer layer.
        cross: names of the layers in cross-attention, in the order of `attention`. An empty
            sequence means that the layer has no cross-attention.
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
        f"{path_prefix}/{path}": tuple(prefix + name for name in names)
        for path, names in parts.items()
        if names
    }


def padded_rows(size: int, is_bias: bool = False, fill_row: int | None = None) -> Transform:
    """Returns a function that appends rows to an embedding table `(V', ...)`, up to `size` rows.

    Args:
        is_bias: whether the table is an output bias. The appended rows are then
            `_UNUSED_TOKEN_BIAS`, and otherwise 0.
        fill_row: index of the row that is appended instead.
    """

    def pad(array: np.ndarray) -> np.ndarray:
        missing = _UNUSED_TOKEN_BIAS if is_bias else 0.0
        missing = missing if fill_row is None else array[fill_row]
        table = np.full((size, *array.shape[1:]), missing, "float32")
        table[: len(array)] = array
        return table

    return pad


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Assigns an array to a variable. Raises a UserError if the two shapes differ."""
    if tuple(variable.shape) != value.shape:
        found, expected = f"have shape {value.shape}", f"must have shape {tuple(variable.shape)}"
        raise UserError(f"the weights for {variable.path} {found}, but {expected}: {_SAME}")
    variable.assign(value)


def assign_weights(
    layer: keras.layers.Layer, arrays: Arrays, table: Table, random_layers: Collection[str] = ()
) -> None:
    """Assigns another library's arrays to a built layer, except its `random_layers`."""
    for variable in layer.weights:
        path = variable.path
        if any(f"/{name}/" in f"/{path}" for name in random_layers):
            continue
        value = find_entry(path, table, arrays.transpose_kernels)
        if value is None:
            raise UserError(f"the weights contain nothing for the model's weight {path}: {_SAME}")
        if isinstance(value, Raw):
            parts = [value.transform(arrays.array(name)) for name in value.names]
            value = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        assign(variable, value)


def find_entry(path: str, table: Table, transpose_kernels: bool = True) -> Any:
    """Returns an array or a `Raw` for the variable at `path`; `None` if the table has neither."""
    block = re.search(r"block_(\d+)", path)
    index = block[1] if block else "0"
    pattern = "/" + re.sub(r"block_\d+", "block_{}", path)
    layer, _, variable = pattern.rpartition("/")
    for key, entry in table.items():
        if callable(entry):
            entry = entry(path)
        elif not (pattern.endswith(f"/{key}") or layer.endswith(f"/{key}")):
            entry = None
        if isinstance(entry, np.ndarray):
            return entry
        if isinstance(entry, Raw):
            names = (name.format(index) for name in entry.names)
            return Raw(*names, transform=entry.transform, inverse=entry.inverse)
        if entry is not None:
            layers = (entry,) if isinstance(entry, str) else entry
            suffix = "bias" if variable in ("bias", "beta") else "weight"
            flip = np.transpose if transpose_kernels and variable == "kernel" else np.asarray
            names = (f"{name.format(index)}.{suffix}" for name in layers)
            return Raw(*names, transform=flip, inverse=flip)
    return None


def layer_state(
    layer: keras.layers.Layer, table: Table, prefix: str = "", transpose_kernels: bool = True
) -> dict[str, np.ndarray]:
    """Converts a layer's weights to PyTorch's names and arrays (inverse of `assign_weights`)."""
    state = {}
    for variable in layer.weights:
        entry = find_entry(variable.path, table, transpose_kernels)
        if entry is None:
            why = f"the weight {variable.path} has no counterpart in Hugging Face's model"
            raise UserError(f"{why}: save the model in macaron_tf's own format")
        array = keras.ops.convert_to_numpy(variable).astype("float32")
        parts = np.split(array, len(entry.names), axis=-1)
        for name, value in zip(entry.names, parts, strict=True):
            state[prefix + name] = entry.inverse(value)
    return state
