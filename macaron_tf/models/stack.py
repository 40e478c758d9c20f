"""A stack of blocks: the body of every encoder and decoder."""

import itertools
from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.attention import all_of, combine_masks
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import block_class
from macaron_tf.layers.norms import normalization
from macaron_tf.layers.positions import RelativePositionBias

RELATIVE_BIASES = ("none", "shared", "per_layer")
# The operators that layers have in common.
SHARING: dict[str, tuple[str, ...]] = {
    "none": (),
    "all": ("tokens", "memory", "channels"),
    "attention": ("tokens", "memory"),
    "feed_forward": ("channels",),
}


@keras.saving.register_keras_serializable(package="macaron_tf")
class Stack(keras.layers.Layer):
    """Blocks one after the other, and a final LayerNorm where they are pre-norm.

    Args:
        layers: of each layer the name of its block, `"block"` (see `macaron_tf.layers.BLOCKS`), and
            the options that are its own: `[{"block": "swish_rnn", "rnn_step_size": 1}, ...]`.
        block_options: those of every block, `num_heads`, `feed_forward_dim`, `causal`,
            `cross_attention`, `norm` and the rest.
        sharing: one of `SHARING`: the operators whose weights, LayerNorms included, are one and
            the same in all layers with equal entries of `layers`.
        relative_bias: T5's bias on the scores of every attention to the sequence itself:
            `"none"`, `"shared"` (one table for all layers) or `"per_layer"`.
        relative_buckets, relative_max_distance: of that bias.
        shared_biases: whether all `RelativeAttention`s have the same u and v.

    Call arguments: those of a block, `x (B, T, D)` first; returns `(B, T, D)`.

    Over segments of a text `with_past` goes on from what the blocks keep of those before.

    Raises:
        ValueError: an unknown block, sharing or kind of bias.

    References: sharing across layers: Lan et al. 2020 (ALBERT), section 3.1; memory: Dai et al.
    2019 (Transformer-XL), section 3.2.
    """

    def __init__(
        self,
        layers: Sequence[dict],
        block_options: dict,
        sharing: str = "none",
        relative_bias: str = "none",
        relative_buckets: int = 32,
        relative_max_distance: int = 128,
        shared_biases: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.layers = [dict(layer) for layer in layers]
        self.block_options = dict(block_options)
        self.sharing = check_choice("sharing", sharing, tuple(SHARING))
        self.relative_bias = check_choice("relative_bias", relative_bias, RELATIVE_BIASES)
        self.relative_buckets = relative_buckets
        self.relative_max_distance = relative_max_distance
        self.shared_biases = shared_biases
        self.blocks: list[Block] = []
        for number, layer in enumerate(self.layers):
            own = {name: value for name, value in layer.items() if name != "block"}
            block = block_class(layer["block"])(
                **self.block_options, **own, dtype=self.dtype_policy, name=f"block_{number}"
            )
            first = self.layers.index(layer)
            if first < number and SHARING[sharing]:
                block.share(self.blocks[first], SHARING[sharing])
            self.blocks.append(block)
        attending = sum(block.attends for block in self.blocks)
        self.biases = [
            RelativePositionBias(
                self.blocks[0].num_heads,
                relative_buckets,
                relative_max_distance,
                bidirectional=not self.blocks[0].causal,
                dtype=self.dtype_policy,
                name=f"relative_bias_{i}",
            )
            for i in range({"none": 0, "shared": min(attending, 1)}.get(relative_bias, attending))
        ]
        self.final_norm = None
        if self.blocks[0].norm == "pre":
            self.final_norm = normalization(
                self.blocks[0].norm_type,
                self.blocks[0].epsilon,
                self.blocks[0].affine,
                dtype=self.dtype_policy,
                name="final_norm",
            )

    def build(self, x_shape, memory_shape=None):
        owner = None
        for block in self.blocks:
            if self.shared_biases and not block.built:
                owner = block.share_biases(owner)
            block.build(x_shape, memory_shape)
        for bias in self.biases:
            bias.build()
        if self.final_norm:
            self.final_norm.build(x_shape)
        self.built = True

    def copy_from(self, other: "Stack") -> None:
        """Takes another stack's weights, see the block's `copy_from`.

        T5's bias is taken where both stacks see the same side: a decoder's distances have other
        buckets than an encoder's.

        Args:
            other: built, as this one, of the same layers.
        """
        for block, one in zip(self.blocks, other.blocks, strict=True):
            block.copy_from(one)
        if self.blocks[0].causal == other.blocks[0].causal:
            for bias, one in zip(self.biases, other.biases, strict=True):
                bias.set_weights(one.get_weights())
        if self.final_norm:
            self.final_norm.set_weights(other.final_norm.get_weights())

    def call(
        self,
        x,
        memory=None,
        attention_mask=None,
        memory_mask=None,
        mask=None,
        x_mask=None,
        segment_ids=None,
        training=None,
    ):
        # Brought to rank 4 once for all blocks; padding goes on by itself, for a recurrence too.
        padding_mask = all_of(mask, x_mask)
        attention_mask = combine_masks(attention_mask)
        memory_mask = combine_masks(memory_mask)
        length = ops.shape(x)[1]
        biases = [bias(query_length=length, key_length=length) for bias in self.biases] or [None]
        # One for each block that has scores, or the same for all.
        turns = itertools.cycle(biases)
        for block in self.blocks:
            x = block(
                x,
                memory=memory,
                attention_mask=attention_mask,
                memory_mask=memory_mask,
                mask=padding_mask,
                attention_bias=next(turns) if block.attends else None,
                segment_ids=segment_ids,
                training=training,
            )
        return self.final_norm(x) if self.final_norm else x

    def empty_past(self, batch_size, memory_length: int) -> dict:
        """What is kept before a text: nothing.

        Args:
            batch_size: B.
            memory_length: M, positions that attention keeps.

        Returns:
            `seen (B, M)` boolean, and `blocks`, of each what its sub-layers keep, `(B, ...)`.

        Raises:
            ValueError: a block keeps nothing of earlier segments.
        """
        return {
            "seen": ops.zeros((batch_size, memory_length), "bool"),
            "blocks": [block.empty_past(batch_size, memory_length) for block in self.blocks],
        }

    def with_past(self, x, past, mask=None, attention_mask=None, segment_ids=None, training=None):
        """The next segment of a text.

        Args:
            x: `(B, L, D)`. past: from `empty_past` or the last segment.
            mask, attention_mask, segment_ids: as of the block's `with_past`.

        Returns:
            `(B, L, D)`, and the new past.
        """
        blocks = []
        for block, held in zip(self.blocks, past["blocks"], strict=True):
            x, held = block.with_past(
                x, held, past["seen"], mask, attention_mask, segment_ids, training=training
            )
            blocks.append(held)
        here = ops.ones(ops.shape(x)[:2], "bool") if mask is None else mask
        past = {"seen": self._seen(past, here), "blocks": blocks}
        return (self.final_norm(x) if self.final_norm else x), past

    def two_streams(
        self,
        content,
        query,
        past,
        mask,
        content_mask,
        query_mask,
        places,
        segment_ids=None,
        training=None,
    ):
        """The next segment of a text in two streams: see the block's `two_streams`.

        Returns:
            h `(B, L, D)`, g `(B, P, D)`, and the new past.
        """
        blocks = []
        for block, held in zip(self.blocks, past["blocks"], strict=True):
            content, query, held = block.two_streams(
                content,
                query,
                held,
                past["seen"],
                mask,
                content_mask,
                query_mask,
                places,
                segment_ids,
                training=training,
            )
            blocks.append(held)
        if self.final_norm:
            content, query = self.final_norm(content), self.final_norm(query)
        return content, query, {"seen": self._seen(past, mask), "blocks": blocks}

    @staticmethod
    def _seen(past, mask):
        """Which positions of the new past there are, `(B, M)`."""
        return ops.concatenate([past["seen"], mask], axis=1)[:, ops.shape(mask)[1] :]

    def start(self, memory):
        """What every block keeps of the memory `(B, S, D)`."""
        return [block.start(memory) for block in self.blocks]

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for the past of K hypotheses in every block, all tensors `(B, K, ...)`."""
        return [block.empty_cache(batch_size, beam_size, max_length) for block in self.blocks]

    def step(self, x, index, context, cache, memory_mask=None):
        """One token of each hypothesis, `x (B K, D)`, through the stack: see the block's `step`."""
        new_cache, turns = [], itertools.cycle(self.biases or [None])
        for block, block_context, block_cache in zip(self.blocks, context, cache, strict=True):
            bias = next(turns) if block.attends else None
            x, held = block.step(x, index, block_context, block_cache, memory_mask, bias)
            new_cache.append(held)
        return (self.final_norm(x) if self.final_norm else x), new_cache

    @property
    def reads(self) -> bool:
        """Whether `read` can do it: see the block's."""
        return all(block.reads for block in self.blocks)

    def read(self, x, index, cache):
        """The next L tokens of each text, `x (B, L, D)`, through the stack: see the block's `read`.

        Returns:
            The new cache.
        """
        new_cache, turns = [], itertools.cycle(self.biases or [None])
        for block, block_cache in zip(self.blocks, cache, strict=True):
            x, held = block.read(x, index, block_cache, next(turns) if block.attends else None)
            new_cache.append(held)
        return new_cache

    def compute_output_shape(self, x_shape, memory_shape=None):
        return tuple(x_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "layers": [dict(layer) for layer in self.layers],
            "block_options": self.block_options,
            "sharing": self.sharing,
            "relative_bias": self.relative_bias,
            "relative_buckets": self.relative_buckets,
            "relative_max_distance": self.relative_max_distance,
            "shared_biases": self.shared_biases,
        }
