"""Declarations of layers about their weights, which optimizers, meshes and LoRA read."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """The declaration of a weight.

    Attributes:
        axes: a name for each dimension, or None. The library's layers use T5X's names: `embed`, the
            channels of a position; `heads`, the channels of all heads, head by head; `mlp`, the
            inner channels of a feed-forward or recurrence; `vocab`, tokens.
        parts: number of matrices of equal width side by side along the last dimension, such as 3
            for queries, keys and values; Adafactor updates each on its own.
        decays: whether weight decay applies to it where vectors and biases are spared.
    """

    axes: tuple[str | None, ...]
    parts: int
    decays: bool


def spec_of(variable: keras.Variable) -> WeightSpec:
    """Returns the declaration of a weight, or a default for one without, as in Keras's own layers.

    The default has no named axis and one part, and decays unless the weight is a vector or has the
    name "bias", as a GRU's bias of rank 2 has.
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
    """Declares a weight's `WeightSpec` in its layer's `build`, and returns the weight.

    Args:
        axes: see `WeightSpec`; () = no named axis.
        parts: see `WeightSpec`.
        decays: see `WeightSpec`; None = the default of `spec_of`.
    """
    usual = spec_of(variable)
    axes, decays = tuple(axes) or usual.axes, usual.decays if decays is None else decays
    if len(axes) != len(usual.axes):
        raise ValueError(f"axes={axes} must name each dimension of {variable.path}")
    variable.weight_spec = WeightSpec(axes, parts, decays)
    if variable._layout is not None:  # on a mesh Keras has placed the weight before it is declared
        variable._layout = keras.distribution.distribution().get_variable_layout(variable)
        variable._direct_assign(variable._value)
    return variable
