"""Transformer encoder with any type of block and position encoding."""

import dataclasses

import keras
from keras import ops

from macaron_tf.layers.blocks import block_class
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.embeddings import AdaptiveEmbedding, EncoderEmbeddings
from macaron_tf.layers.mixer import Context, all_of
from macaron_tf.layers.packing import Packing, packing_enabled
from macaron_tf.models.base import Network, attention_mask, padding_mask
from macaron_tf.models.config import BY_ATTENTION, EncoderConfig
from macaron_tf.models.stack import Stack

# Inputs `(B, L)`, with one id per token.
_TOKEN_INPUTS = ("token_ids", "segment_ids", "language_ids", "position_ids")


class Encoder(Network):
    """Encoder: embeddings and a stack of blocks, from ids `(B, L)` to hidden states `(B, L, D)`.

    `embeddings` may be shared with another encoder. A call takes `token_ids` alone, or a dict in
    which all inputs except `token_ids` are optional:

        token_ids (B, L)          int
        segment_ids (B, L)        int, 0 by default
        language_ids (B, L)       int, 0 by default
        position_ids (B, L)       int, 0 to L - 1 by default
        document_ids (B, L)       int, the document of each position
        padding_mask (B, L)       0 or False at padding, by default where an id is `pad_id`
        attention_mask (B, L, L)  1 or True = attend, also accepted as (B, H, L, L)

    Real positions do not see padding. With `document_ids`, no position sees another document.
    Positions then start at 0 in each document, unless the dict contains `position_ids`. The output
    has the padding mask as Keras mask.

    Example:
        encoder = Encoder(EncoderConfig(1000, 128, 384, 2, 2, block="macaron"))
        hidden = encoder(token_ids)

    References: Devlin et al. 2018 (BERT); Lu et al. 2019 for Macaron blocks; Lei et al. 2022 for
    SwishRNN and relative biases; Lan et al. 2020 (ALBERT), section 3.1, for factorized embeddings
    and shared layers; Liu et al. 2021 for gated MLPs.
    """

    def __init__(
        self,
        config: EncoderConfig,
        embeddings: EncoderEmbeddings | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        width, relative = config.embedding_width, config.positions == "transformer_xl"
        initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
        tokens = None
        adapts = config.adaptive_cutoffs and config.tied and config.adaptive_divisor > 1
        if adapts and embeddings is None:  # embeddings that are narrower for rare tokens
            cutoffs = (config.adaptive_cutoffs, config.adaptive_divisor, config.embedding_scale)
            options = {"initializer": initializer.clone(), "name": "tokens"}
            tokens = AdaptiveEmbedding(config.vocab_size, width, *cutoffs, **options)
        self.embeddings = embeddings or EncoderEmbeddings(
            embedding_dim=width,
            # Relative attention compares segments instead of adding embeddings.
            num_segments=0 if relative else config.num_segments,
            scale=config.embedding_scale,
            **config.embedding_options(),
            **config.options("num_languages", "initializer_range"),
            tokens=tokens,
            name="embeddings",
        )
        if self.embeddings.embedding_dim != width:
            raise ValueError(f"embedding_dim={width} must be {self.embeddings.embedding_dim}")
        self.projection = None
        if width != config.hidden_dim:
            options = {"kernel_initializer": initializer.clone(), "name": "projection"}
            self.projection = Dense(config.hidden_dim, **options)
        output_initializer = None
        if config.scaled_outputs:
            layers = (config.layer(index)[0] for index in range(config.num_layers))
            depth = sum(len(config.splitting(block_class(block).scheme)) for block in layers)
            deviation = config.initializer_range / depth**0.5
            output_initializer = keras.initializers.TruncatedNormal(stddev=deviation)
        self.stack = Stack(
            config,
            **config.options("num_layers", "causal", "sharing"),
            segments=relative and config.num_segments > 0,
            shared_biases=relative and config.shared_position_biases,
            kernel_initializer=initializer,
            output_initializer=output_initializer,
            name="stack",
        )
        self.reads = () if config.positions in BY_ATTENTION else ("positions",)
        if config.adaptive_cutoffs:
            self.reads += ("adaptive_divisor", "tied")
        elif config.causal:
            self.reads += ("output_bias", "tied")

    def build(self, input_shape=None):
        if self.projection:
            self.projection.build((None, None, self.config.embedding_width))
        super().build()

    def compute_mask(self, inputs, previous_mask=None):
        return padding_mask(self._named_inputs(inputs), self.config.pad_id)

    def call(self, inputs, training=None):
        return self.with_memory(self._named_inputs(inputs), None, training=training)[0]

    def with_memory(self, inputs, memory, training=None):
        """Encodes the next segment of a text, and returns `(B, L, D)` and the new memory.

        `memory` comes from the previous call or from `init_memory` of the stack, and excludes the
        input `document_ids`. Without it, the new memory contains no tensors.
        """
        documents, masks = inputs.get("document_ids"), [attention_mask(inputs)]
        if documents is not None:
            self.stack.check_documents()
            if memory is not None:
                raise ValueError("document_ids and a memory exclude each other: remove one")
            masks.append(ops.equal(documents[:, None, :, None], documents[:, None, None, :]))
            if "position_ids" not in inputs:
                # A position is the number of earlier positions in the same document, (B, L).
                columns = ops.arange(ops.shape(documents)[1], dtype="int32")
                earlier = ops.logical_and(masks[-1][:, 0], columns < columns[:, None])
                positions = ops.sum(ops.cast(earlier, "int32"), axis=-1)
                inputs = {**inputs, "position_ids": positions}
        context = Context(
            mask=padding_mask(inputs, self.config.pad_id),
            attention_mask=all_of(*masks),
            segment_ids=inputs.get("segment_ids"),
            positions=inputs.get("position_ids"),
            documents=documents,
            training=training,
        )
        unpackable = {"attention_mask", "document_ids"} & set(inputs)
        if memory is not None or training or not packing_enabled() or unpackable:
            return self.stack.mix(self.embed(inputs, training=training), context, memory)
        packing = Packing(context.mask)
        positions = ops.arange(ops.shape(inputs["token_ids"])[1], dtype="int32")
        positions = ops.broadcast_to(positions, ops.shape(inputs["token_ids"]))  # (B, L)
        unpacked = {"position_ids": positions, **inputs}
        names = [name for name in _TOKEN_INPUTS if name in unpacked]
        x = self.embed({name: packing.pack(unpacked[name]) for name in names})
        x, memory = self.stack.mix(x, dataclasses.replace(context, packing=packing))  # (N, D)
        return packing.pad(x), memory

    def embed(self, inputs, training=None):
        """Computes the input of the first block, `(B, L, D)`, from the inputs of `call`."""
        ids = {name: inputs.get(name) for name in _TOKEN_INPUTS}
        x = self.embeddings(ids.pop("token_ids"), **ids, training=training)  # (B, L, E)
        return self.projection(x) if self.projection else x  # (B, L, D)
