"""What a layer says of a weight that it makes, for the optimizer, the mesh and LoRA to read."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """What a weight is.

    Attributes:
        axes: a name for each dimension, or None. The library's layers have, after T5X, `embed`, the
            channels of a position; `heads`, the channels of all heads, head by head; `mlp`, the
            inner channels of a feed-forward or recurrence; `vocab`, tokens.
        parts: matrices of equal width side by side along the last dimension, as queries, keys and
            values are; Adafactor updates each alone.
        decays: whether a weight decay reaches it that spares vectors and biases.
    """

    axes: tuple[str | None, ...]
    parts: int
    decays: bool


def spec_of(variable: keras.Variable) -> WeightSpec:
    """A weight's declaration; of one without, such as Keras's own layers make, the usual.

    That is no named axis, one part, and a weight decay where it is neither a vector nor what Keras
    names "bias": a GRU's has rank 2.
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
    """Gives a weight its `WeightSpec`, in its layer's `build`, and returns the weight.

    Args:
        axes: () for no named ones. decays: None as for a weight that is not declared.
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
