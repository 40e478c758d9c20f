"""Metadata of weights, which layers declare and which optimizers, device meshes and LoRA read."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """Metadata of a weight.

    Attributes:
        axes: name of each dimension, or `None` for a dimension without a name. The names follow
            T5X: `embed` (model width), `heads` (concatenated attention heads), `mlp` (inner width
            of a feed-forward layer or recurrence) and `vocab` (tokens). `cluster` is the vocabulary
            axis of one cluster of adaptive embeddings.
        parts: number of matrices of equal width that are concatenated along the last dimension,
            such as 3 for queries, keys and values. Adafactor and Muon update each matrix
            separately.
        decays: whether weight decay applies to the weight. Only optimizers that exempt vectors and
            biases from weight decay read this field.
    """

    axes: tuple[str | None, ...]
    parts: int
    decays: bool


def spec_of(variable: keras.Variable) -> WeightSpec:
    """Returns the metadata of a weight, or default metadata if no layer has declared metadata.

    By default, the axes have no names, the weight has one part, and weight decay applies unless the
    weight is a scalar or a vector, or is named "bias". The name matters for the bias of Keras's
    GRU, which has rank 2.
    """
    rank = len(variable.shape)
    default = WeightSpec((None,) * rank, 1, rank > 1 and variable.name != "bias")
    return getattr(variable, "weight_spec", default)


def declare(
    variable: keras.Variable,
    axes: tuple[str | None, ...] = (),
    parts: int = 1,
    decays: bool | None = None,
) -> keras.Variable:
    """Attaches a `WeightSpec` to a weight, and returns the weight. Layers call it in `build`.

    No `axes`, and `decays=None`, mean the values that `spec_of` returns.
    """
    default = spec_of(variable)
    axes, decays = tuple(axes) or default.axes, default.decays if decays is None else decays
    if len(axes) != len(default.axes):
        raise ValueError(f"axes={axes} must name {len(default.axes)} dimensions of {variable.path}")
    variable.weight_spec = WeightSpec(axes, parts, decays)
    if variable._layout is not None:  # on a device mesh, Keras has already placed the weight
        variable._layout = keras.distribution.distribution().get_variable_layout(variable)
        variable._direct_assign(variable._value)
    return variable
