"""`Stack`, a sequence of blocks in an encoder or decoder."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.attention import broadcast_mask
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import block_class
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.norms import normalization
from macaron_tf.layers.positions import RelativePositionBias
from macaron_tf.layers.remat import mix_with_remat
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig, StackConfig
from macaron_tf.settings import SettingError

# Operators whose weights the layers share, for the values of `EncoderConfig.sharing`.
SHARING: dict[str, tuple[str, ...]] = {
    "none": (),
    "all": ("tokens", "memory", "channels"),
    "attention": ("tokens", "memory"),
    "feed_forward": ("channels",),
}


class Stack(Mixer):
    """Sequence of blocks, followed by a final norm except in post-norm models.

    Args:
        config: configuration that also names the block of each layer.
        num_layers: number of blocks.
        sharing: weights that layers share, including norms (see `EncoderConfig`). Layers share
            weights only if they have the same block, step size, window and norms.
        shared_biases: whether all relative attention layers share the bias vectors u and v.
        output_initializer: initializer of the last matrix in each sub-layer. `None` means
            `kernel_initializer`.
        bias_range: initial standard deviation of T5's relative position biases. 0 means that the
            biases start at 0.

    The other arguments and the call arguments are those of `Block`.

    References: Lan et al. 2020 (ALBERT), section 3.1, for shared layers; Dai et al. 2019
    (Transformer-XL), section 3.2, for the memory.
    """

    def __init__(
        self,
        config: StackConfig,
        num_layers: int,
        causal: bool = False,
        cross_attention: bool = False,
        sharing: str = "none",
        segments: bool = False,
        shared_biases: bool = False,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        bias_range: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.blocks: list[Block] = []
        layers = [(*config.layer(i), config.first_norm or i > 0) for i in range(num_layers)]
        for index, (name, step_size, window, first_norm) in enumerate(layers):
            block = block_class(name)(
                config,
                causal=causal,
                cross_attention=cross_attention,
                relative=config.positions == "transformer_xl",
                segments=segments,
                rnn_step_size=step_size,
                attention_window=window,
                first_norm=first_norm,
                kernel_initializer=kernel_initializer,
                output_initializer=output_initializer,
                name=f"block_{index}",
            )
            first = layers.index(layers[index])
            if first < index and SHARING[sharing]:
                block.share(self.blocks[first], SHARING[sharing])
            self.blocks.append(block)
        self.can_prefill = all(block.can_prefill for block in self.blocks)
        attending = sum(block.takes_bias for block in self.blocks)
        self.reads = ("relative_bias",) if attending else ()
        tables = {"none": 0, "shared": min(attending, 1), "per_layer": attending}
        self.biases = []
        options: dict[str, Any] = {"bidirectional": not causal}
        for index in range(tables[config.relative_bias]):
            options["name"] = f"relative_bias_{index}"
            if bias_range:
                options["initializer"] = keras.initializers.RandomNormal(stddev=bias_range)
            self.biases.append(RelativePositionBias(config.num_heads, **options))
        # A read-only cache excludes relative position biases.
        mixers = [mixer for block in self.blocks for mixer in block.mixers() if mixer.keeps_state]
        self.takes_cache_mask = not self.biases and all(m.takes_cache_mask for m in mixers)
        self.final_norm = None
        if config.norm in ("pre", "output"):
            options = config.options("norm_type", "epsilon", "affine")
            self.final_norm = normalization(**options, name="final_norm")

    def build(self, x_shape, memory_shape=None):
        owner = None
        for block in self.blocks:
            if self.shared_biases and not block.built:
                for attention in block.mixers("tokens"):
                    if owner and attention is not owner:
                        attention.share_biases(owner)
                    owner = owner or attention
            block.build(x_shape, memory_shape)
        for bias in self.biases:
            bias.build()
        if self.final_norm:
            self.final_norm.build(x_shape)

    def check_documents(self) -> None:
        """Raises a SettingError if a mixer cannot separate the documents within a sequence."""
        for mixer in (mixer for block in self.blocks for mixer in block.mixers()):
            if mixer.keeps_state and not mixer.takes_documents:
                raise SettingError(f"{type(mixer).__name__} mixes packed documents: use others")

    def mix(self, x, context: Context, state=None):
        context = dataclasses.replace(
            context,
            attention_mask=broadcast_mask(context.attention_mask),
            memory_mask=broadcast_mask(context.memory_mask),
        )
        # Each block with attention scores has its own bias, or all blocks share one bias.
        biases: Any = [_computed_once(bias) for bias in self.biases] or [context.bias]
        biases = itertools.cycle(biases)
        new_states = []
        for index, block in enumerate(self.blocks):
            memory_keys = context.memory_keys and context.memory_keys[index]
            bias = next(biases) if block.takes_bias else None
            block_context = dataclasses.replace(context, bias=bias, memory_keys=memory_keys)
            recomputes = self.config.remat and context.training
            mix = functools.partial(mix_with_remat, block) if recomputes else block.mix
            x, new_state = mix(x, block_context, state and state[index])
            new_states.append(new_state)
        return self.final_norm(x, training=context.training) if self.final_norm else x, new_states

    def init_cache(self, batch_size, beams: int, capacity: int | None) -> list:
        return [block.init_cache(batch_size, beams, capacity) for block in self.blocks]

    def init_memory(self, batch_size, length: int) -> list:
        return [block.init_memory(batch_size, length) for block in self.blocks]

    def project_memory(self, memory) -> list:
        """Computes one list per block of keys and values of the memory `(B, S, D)`."""
        return [block.project_memory(memory) for block in self.blocks]

    def copy_from(self, other: "Stack") -> None:
        """Copies the weights of another stack with the same layers (see `Block.copy_from`).

        T5's relative bias is copied only if both stacks are causal or both are bidirectional,
        because causal and bidirectional buckets stand for different distances.
        """
        for block, other_block in zip(self.blocks, other.blocks, strict=True):
            block.copy_from(other_block)
        if self.causal == other.causal:
            for bias, other_bias in zip(self.biases, other.biases, strict=True):
                bias.set_weights(other_bias.get_weights())
        if self.final_norm:
            self.final_norm.set_weights(other.final_norm.get_weights())


_CHECKED_LENGTH = 32  # number of positions in `check_causal`


@functools.cache
def check_causal(config: StackConfig) -> None:
    """Raises a SettingError if a user's block reads later positions in a causal model.

    Such a model would predict each token from this token itself. The function changes one position
    after another of a random input, and compares the outputs at earlier positions. The blocks are
    new ones with random weights, because an initial weight of 0 could hide a leak.
    """
    decodes = isinstance(config, EncoderDecoderConfig)
    names = [name if is_import_path(name) else "" for name in config.blocks]
    # On a mesh of several processes, no process could read the outputs.
    is_causal = decodes or (isinstance(config, EncoderConfig) and config.causal)
    if not (is_causal and any(names)) or keras.distribution.distribution():
        return
    draw, length = np.random.default_rng(0), min(_CHECKED_LENGTH, config.longest or _CHECKED_LENGTH)
    stack = Stack(config, len(names), causal=True, cross_attention=decodes)
    shape = (length, length, config.hidden_dim)
    stack.build(shape, shape if decodes else None)
    for weight in stack.weights:
        weight.assign(weight + 0.2 * draw.normal(size=weight.shape))
    x = np.repeat(draw.normal(size=(1, *shape[1:])), length, axis=0)  # (T, T, D)
    positions = np.arange(length)
    # Row k > 0 has another vector at position k.
    x[positions[1:], positions[1:]] = draw.normal(size=(length - 1, config.hidden_dim))
    memory = keras.ops.convert_to_tensor(np.ones(shape), "float32") if decodes else None
    for name, block in zip(names, stack.blocks, strict=True):
        if not name:
            continue
        y, _ = block.mix(keras.ops.convert_to_tensor(x, "float32"), Context(memory=memory))
        y = keras.ops.convert_to_numpy(y)
        change = np.abs(y - y[:1]).max(axis=-1)  # (changed position, position)
        leaks = np.argwhere(np.tril(change, -1) > 1e-5 * np.abs(y).max())
        if len(leaks):
            later, position = leaks[0]
            raise SettingError(
                f"{name} reads later positions in a causal model (the output at position "
                f"{position} changes with position {later}): hide them from its mixers if "
                "self.causal"
            )


def _computed_once(bias: RelativePositionBias) -> Callable:
    """Wraps a relative position bias, so that one forward pass computes the bias only once.

    All layers that share it have the same lengths. Each forward pass needs a new wrapper.
    """
    result: list = []

    def bias_once(**lengths):
        if not result:
            result.append(bias(**lengths))
        return result[0]

    return bias_once
