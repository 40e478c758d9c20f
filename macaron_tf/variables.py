"""Metadata that layers attach to their weights, for optimizers, device meshes and LoRA."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """Metadata of a weight.

    Attributes:
        axes: a name for each dimension, or None. The library's layers use T5X's names: `embed`, the
            channels of a position; `heads`, the channels of all heads, head by head; `mlp`, the
            inner channels of a feed-forward layer or recurrence; `vocab`, tokens.
        parts: number of matrices of equal width side by side along the last dimension, such as 3
            for queries, keys and values; Adafactor updates each on its own.
        decays: whether weight decay applies to it, in optimizers that exempt vectors and biases.
    """

    axes: tuple[str | None, ...]
    parts: int
    decays: bool


def spec_of(variable: keras.Variable) -> WeightSpec:
    """Returns the metadata of a weight, or defaults if it has none, as in Keras's own layers.

    The defaults are no named axis, one part, and decay unless the weight is a vector or is called
    "bias" (a GRU's bias has rank 2).
    """
    rank = len(variable.shape)
    usual = WeightSpec((None,) * rank, 1, rank > 1 and variable.name != "bias")
    return getattr(variable, "weight_spec", usual)


def declare(
    variable: keras.Variable,
    axes: tuple[str | None, ...] = (),
    parts: int = 1,
    decays: bool | None = None,
) -> keras.Variable:
    """Attaches a `WeightSpec` to a weight and returns the weight. Call it in the layer's `build`.

    Args:
        axes: see `WeightSpec`; (): no named axis.
        parts: see `WeightSpec`.
        decays: see `WeightSpec`; None: the default of `spec_of`.
    """
    usual = spec_of(variable)
    axes, decays = tuple(axes) or usual.axes, usual.decays if decays is None else decays
    if len(axes) != len(usual.axes):
        raise ValueError(f"axes={axes} must name each dimension of {variable.path}")
    variable.weight_spec = WeightSpec(axes, parts, decays)
    if variable._layout is not None:  # on a mesh, where Keras has already placed the weight
        variable._layout = keras.distribution.distribution().get_variable_layout(variable)
        variable._direct_assign(variable._value)
    return variable
