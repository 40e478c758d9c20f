"""Gradient checkpointing, which recomputes activations in the backward pass to save memory."""

import dataclasses
from typing import Any

import keras
from keras import ops

from macaron_tf.layers.mixer import Context, Mixer


def mix_with_remat(mixer: Mixer, x, context: Context, state=None):
    """Computes `mixer.mix(x, context, state)` with gradient checkpointing.

    The backward pass recomputes the activations from inputs and weights, with copies of the seed
    generators' states to repeat the dropout masks.

    References: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    weights, non_trainable = mixer.trainable_variables, mixer.non_trainable_variables
    length = ops.shape(x)[1]
    bias = context.bias and context.bias(query_length=length, key_length=length)
    # Gradients flow to the values in `tensors`, so these values are arguments of `forward`. The
    # function `forward` captures all other inputs. The state is an argument because, in XLNet's
    # query stream, the state contains the keys of the content stream.
    leaves = keras.tree.flatten(state)
    tensors: dict[str | int, Any] = {"x": x, "memory": context.memory, "bias": bias}
    for index, leaf in enumerate(leaves):
        if leaf is not None and keras.backend.is_float_dtype(leaf.dtype):
            tensors[index] = leaf
    names = [name for name, value in tensors.items() if value is not None]
    old_values = [ops.copy(variable) for variable in non_trainable]  # values before the call
    structure: list = []

    def forward(*arrays):
        inputs = dict(zip(names, arrays, strict=False))
        new_bias = None if bias is None else lambda **_: inputs["bias"]
        recomputed_context = dataclasses.replace(
            context, memory=inputs.get("memory"), bias=new_bias
        )
        values = [*arrays[len(names) :], *old_values]
        old_state = [inputs.get(index, leaf) for index, leaf in enumerate(leaves)]
        old_state = keras.tree.pack_sequence_as(state, old_state)
        mapping = zip(weights + non_trainable, values, strict=True)
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            before = [scope.get_current_value(variable) for variable in non_trainable]
            y, new_state = mixer.mix(inputs["x"], recomputed_context, old_state)
            after = [scope.get_current_value(variable) for variable in non_trainable]
        # Frozen weights are not written back, because their values were cast to the compute dtype.
        changed = [n for n, value in enumerate(after) if value is not before[n]]
        structure[:] = [new_state, changed]
        present = [leaf for leaf in keras.tree.flatten(new_state) if leaf is not None]
        return y, *present, *(after[n] for n in changed), *scope.losses

    arrays = [tensors[name] for name in names] + [ops.copy(weight) for weight in weights]
    y, *outputs = keras.remat(forward)(*arrays)
    (new_state, changed), outputs = structure, iter(outputs)
    flat = [leaf if leaf is None else next(outputs) for leaf in keras.tree.flatten(new_state)]
    for index, value in zip(changed, outputs, strict=False):
        non_trainable[index].assign(value)
    for loss in outputs:
        mixer.add_loss(loss)
    return y, keras.tree.pack_sequence_as(new_state, flat)
