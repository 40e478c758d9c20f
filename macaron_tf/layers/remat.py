"""Gradient checkpointing, which recomputes activations in the backward pass to save memory."""

import keras
from keras import ops

from macaron_tf.layers.mixer import Context, Mixer


def recomputed(mixer: Mixer, x, context: Context, state=None):
    """Computes `mixer.mix(x, context, state)` with gradient checkpointing.

    Only the inputs and the weights stay in memory until the backward pass, which recomputes the
    activations. To repeat the dropout masks, the computation starts from copies of the seed
    generators' states. The function stores the new states afterwards.

    References: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    weights, others = mixer.trainable_variables, mixer.non_trainable_variables
    length = ops.shape(x)[1]
    bias = context.bias and context.bias(query_length=length, key_length=length)
    # Gradients flow to the values in `given`, so these values are arguments of `run`. The function
    # `run` captures all other inputs. The state is an argument because, in XLNet's query stream,
    # the state contains the keys of the content stream.
    leaves = keras.tree.flatten(state)
    given = {"x": x, "memory": context.memory, "bias": bias}
    given |= {number: leaf for number, leaf in enumerate(leaves) if _is_float(leaf)}
    names = [name for name, value in given.items() if value is not None]
    held = [ops.copy(variable) for variable in others]  # values before the call
    structure = []

    def run(*arrays):
        inputs = dict(zip(names, arrays, strict=False))
        own = context.replace(
            memory=inputs.get("memory"), bias=None if bias is None else lambda **_: inputs["bias"]
        )
        values = [*arrays[len(names) :], *held]
        before = [inputs.get(number, leaf) for number, leaf in enumerate(leaves)]
        before = keras.tree.pack_sequence_as(state, before)
        with keras.StatelessScope(zip(weights + others, values, strict=True)) as scope:
            old = [scope.get_current_value(variable) for variable in others]
            y, after = mixer.mix(inputs["x"], own, before)
            new = [scope.get_current_value(variable) for variable in others]
        # Frozen weights are not written back, because their values were cast to the compute dtype.
        written = [n for n, pair in enumerate(zip(old, new, strict=True)) if pair[0] is not pair[1]]
        structure[:] = [after, written]
        present = [leaf for leaf in keras.tree.flatten(after) if leaf is not None]
        return y, *present, *(new[n] for n in written)

    arrays = [given[name] for name in names] + [ops.copy(weight) for weight in weights]
    y, *rest = keras.remat(run)(*arrays)
    (after, written), rest = structure, iter(rest)
    flat = [leaf if leaf is None else next(rest) for leaf in keras.tree.flatten(after)]
    for number, value in zip(written, rest, strict=True):
        others[number].assign(value)
    return y, keras.tree.pack_sequence_as(after, flat)


def _is_float(leaf) -> bool:
    return leaf is not None and keras.backend.is_float_dtype(leaf.dtype)
