"""From another library's arrays into our variables: one walk along a table of names.

A table maps the ends of our paths to their names, `{}` being a block's number:

    "block_{}/attention_0/attention/query_key_value": ("h.{}.query", "h.{}.key", "h.{}.value")
    "block_{}/attention_0/norm": "h.{}.ln_1"
    "embeddings/segments": Raw("segments.weight")

The end of a layer's path stands for a layer of theirs, or for several that ours keeps side by side
in one; `Arrays.part` brings their kernels into our layout. The end of a variable's path stands for
an array itself, transformed where the layout is the family's own.
"""

import re
from collections.abc import Callable, Collection, Mapping

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.files import Arrays
from macaron_tf.models.config import ConfiguredModel

# Tables end at a multiple of 8 rows. This bias gives the rows of no token a probability of 0 and
# leaves the others' as they were; float16 holds no -1e5.
UNUSED_TOKEN_BIAS = -1e4


class Raw:
    """Arrays by their whole names, each transformed, then side by side."""

    def __init__(self, *names: str, transform: Callable[[np.ndarray], np.ndarray] | None = None):
        self.names = names
        self.transform = transform or (lambda array: array)


# Entries that are arrays are assigned as they are.
Table = Mapping[str, str | tuple[str, ...] | Raw | np.ndarray]


def under(ours: str, theirs: str, table: Mapping[str, str | tuple[str, ...]]) -> Table:
    """A table of layers with prefixes in front of our paths and of their names."""

    def whole(names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return theirs + names if isinstance(names, str) else tuple(theirs + n for n in names)

    return {f"{ours}/{path}": whole(names) for path, names in table.items()}


def rows(ids: np.ndarray, size: int, missing: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    """A transform: rows `ids (V',)` of an array, `missing` at id -1 and up to `size` rows."""
    known = np.flatnonzero(ids >= 0)

    def chosen(array: np.ndarray) -> np.ndarray:
        table = np.full((size, *array.shape[1:]), missing, "float32")
        table[known] = array[ids[known]]
        return table

    return chosen


def check_rows(ids: np.ndarray, count: int) -> None:
    """Refuses ids of a vocabulary beyond the `count` rows of a model's table."""
    if ids.max() >= count:
        raise UserError(
            f"the vocabulary has ids up to {ids.max()} and the model embeds only {count} pieces: "
            "it is another model's vocabulary."
        )


def assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Sets a variable; a UserError names it where the shapes differ."""
    if tuple(variable.shape) != value.shape:
        raise UserError(
            f"the weights do not fit the model: {variable.path} has shape "
            f"{tuple(variable.shape)}, the weights to be read have {value.shape}."
        )
    variable.assign(value)


def assign_weights(
    layer: keras.layers.Layer,
    arrays: Arrays,
    table: Table,
    drawn: Collection[str] = (),
    first_layer: int = 0,
) -> None:
    """Sets the variables of a built layer or model by a table of names.

    Args:
        drawn: names of parts of the model that keep their initial values.
        first_layer: their number of our block 0.

    Raises:
        UserError: an array is missing or of another shape, or the table has no entry for a
            variable; the sentence names it.
    """
    for variable in layer.weights:
        if not any(f"/{part}/" in f"/{variable.path}" for part in drawn):
            assign(variable, _value(variable.path, arrays, table, first_layer))


def _value(path: str, arrays: Arrays, table: Table, first_layer: int) -> np.ndarray:
    block = re.search(r"block_(\d+)", path)
    number = int(block[1]) + first_layer if block else 0
    ours = "/" + re.sub(r"block_\d+", "block_{}", path)
    layer, _, part = ours.rpartition("/")
    for key, entry in table.items():
        if ours.endswith(f"/{key}"):
            if isinstance(entry, np.ndarray):
                return entry
            parts = [entry.transform(arrays.array(name.format(number))) for name in entry.names]
        elif layer.endswith(f"/{key}"):
            names = (entry,) if isinstance(entry, str) else entry
            parts = [arrays.part(name.format(number), part) for name in names]
        else:
            continue
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    raise UserError(f"the weights to be read have nothing for the model's {path}.")


def check_output(arrays: Arrays, output: str, tokens: np.ndarray, name: str) -> None:
    """Refuses a model whose output layer, where it is kept, is not the table of its tokens.

    Args:
        output: name of the output layer's array.
        tokens: the table `(V', E)`.
        name: of the model in errors.
    """
    if arrays.has(output) and not np.array_equal(arrays.array(output), tokens):
        raise UserError(
            f"the {name} model's {output} is not its token embeddings: ours has one table for both."
        )


def check_unread(
    arrays: Arrays, body: tuple[str, ...], name: str, repeated: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Names of the arrays that were not read, all of them of other heads.

    Args:
        body: how the names of weights begin that must have been read.
        name: of the model in errors.
        repeated: ends of names that do not count.

    Raises:
        UserError: a weight of the body was not read.
    """
    unread = [n for n in arrays.unread() if not n.endswith(repeated)]
    for left in unread:
        if left.startswith(body):
            raise UserError(f"the {name} model has {left}, for which ours has no place.")
    return tuple(unread)


def built(model: type[ConfiguredModel], settings: Mapping, *arguments) -> ConfiguredModel:
    """Our model of another one's settings.

    Args:
        settings: fields of the model's configuration.
        arguments: of the model, behind its configuration.

    Raises:
        UserError: the settings are out of our range.
    """
    try:
        config = model.config_class(**settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    network = model(config, *arguments)
    network.build()
    return network
