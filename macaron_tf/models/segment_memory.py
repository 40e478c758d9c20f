"""Models with a memory of earlier segments: Transformer-XL and XLNet."""

import dataclasses
from typing import Any

import keras
from keras import ops

from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.mixer import Context
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel, TokenModel


class SegmentMemory:
    """Transformer-XL memory: row b of the next batch continues the text in row b of this batch.

    The memory is not a weight of the network. The same weights therefore work with any number of
    rows and any memory length. In data-parallel training, each replica has a separate memory.

    With gradient accumulation, each of the `micro_batches` per update has separate texts and a
    separate memory. The memories form a queue: `read` returns the first memory, and `write` removes
    the first memory and appends the new memory.

    Args:
        empty: empty memory from the network's `init_memory`, nested tensors `(B, ...)`.

    Attributes:
        variables: Keras variables that store the memories, `(B, micro_batches, ...)` each.
    """

    def __init__(self, empty: Any, micro_batches: int = 1):
        def variable(value):
            return keras.Variable(
                ops.repeat(ops.zeros_like(value)[:, None], micro_batches, axis=1),
                dtype=keras.backend.standardize_dtype(value.dtype),
                trainable=False,
                autocast=False,
                # Each replica reads and writes a separate memory.
                synchronization="on_read",
                aggregation="only_first_replica",
                name="segment_memory",
            )

        self._variable_tree = keras.tree.map_structure(variable, empty)
        self.variables: list[keras.Variable] = keras.tree.flatten(self._variable_tree)

    def read(self, starts=None):
        """Returns the memory of the next batch.

        `starts` is boolean `(B,)`, True for rows in which a new text begins, whose memory is empty.
        `None` means that no row begins a new text.
        """

        def current(variable):
            value = ops.convert_to_tensor(variable)[:, 0]
            if starts is None:
                return value
            is_start = ops.reshape(starts, (-1, *[1] * (len(value.shape) - 1)))
            return ops.where(is_start, ops.zeros_like(value), value)

        return keras.tree.map_structure(current, self._variable_tree)

    def write(self, memory) -> None:
        for variable, value in zip(self.variables, keras.tree.flatten(memory), strict=True):
            value = value[:, None]  # (B, ...) -> (B, 1, ...)
            if variable.shape[1] > 1:
                pending = ops.convert_to_tensor(variable)[:, 1:]
                value = ops.concatenate([pending, value], axis=1)
            variable.assign(value)


class KeepsMemory:
    """Mixin for networks that keep a memory of earlier segments between training batches.

    Attributes:
        memory_length: number of earlier positions M that attention sees.
        memories: dict with the memories `"training"` and `"evaluation"`. `None` until
            `create_memory` is called.
    """

    encoder: Encoder
    memory_length: int
    memories: dict[str, SegmentMemory] | None = None

    def init_memory(self, batch_size):
        """Returns the memory before the first segment of a text (see `Mixer.init_memory`)."""
        return self.encoder.stack.init_memory(batch_size, self.memory_length)

    def create_memory(self, rows: int, micro_batches: int = 1) -> None:
        """Creates the memory variables for the batches of one replica, with B = `rows`."""
        empty = self.init_memory(rows)
        training, evaluation = SegmentMemory(empty, micro_batches), SegmentMemory(empty)
        self.memories = {"training": training, "evaluation": evaluation}


class SegmentLanguageModel(KeepsMemory, LanguageModel):
    """Language model with a memory of earlier segments (Transformer-XL).

    In each layer, attention keeps its inputs at the last M = `memory_length` positions, and a
    recurrence keeps its state. No gradient flows through the memory. `call` computes a segment
    without a memory. In cached decoding, a token sees itself and the last M tokens, so the cost per
    token is constant. `config` must have `causal=True` and `positions="transformer_xl"`.

    Example:
        memory = model.init_memory(batch_size)
        for segment in segments:  # (B, L) each
            hidden, memory = model.with_memory({"token_ids": segment}, memory)
            logits = model.logits(hidden)

    References: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
    Context".
    """

    def __init__(self, config: EncoderConfig, memory_length: int, **kwargs):
        super().__init__(config, **kwargs)

    def with_memory(self, inputs, memory, training=None):
        """Encodes the next segment of a text (see `Encoder.with_memory`)."""
        return self.encoder.with_memory(inputs, memory, training=training)

    def init_decode(self, batch_size, beams: int, max_length: int | None = None):
        """Starts cached decoding. The cache contains the last M tokens, whatever `max_length`."""
        context, _ = super().init_decode(batch_size, beams)
        cache = self.encoder.stack.init_cache(batch_size, beams, self.memory_length)
        return context, {"fixed": cache}


class TwoStreamModel(KeepsMemory, TokenModel):
    """XLNet, which predicts tokens in any order with a content stream and a query stream.

    The input `order` determines visibility. A content vector sees tokens with its own order or a
    lower order. A query sees only tokens with a lower order. Tokens of order -1 are the visible
    context. The model predicts the other tokens one after the other, from the context, the tokens
    predicted before, and a memory of earlier segments.

    Args:
        config: encoder configuration with `positions="transformer_xl"` and `causal=False`. The
            blocks must have position-wise channel mixers: `transformer` or `macaron`.
        pooler: whether to keep a released model's pooler, which a call does not compute.

    A call takes a dict with these inputs:

        token_ids (B, L)         int, `pad_id` at padding
        order (B, L)             int, the order of prediction
        masked_positions (B, P)  int, the positions to predict, -1 at padding
        segment_ids (B, L)       int, optional
        backward (B,)            bool, True for rows read from the end of the text, optional
        memory                   from `init_memory` or the previous call, optional

    A call returns a dict with these outputs:

        masked_language (B, P, V)  logits
        content (B, L, D)          content stream
        query (B, P, D)            query stream
        memory                     new memory

    References: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
    Understanding", sections 2.2 to 2.5.
    """

    input_names = None

    def __init__(self, config: EncoderConfig, memory_length: int, pooler: bool = False, **kwargs):
        if config.positions != "transformer_xl" or config.causal:
            raise ValueError("two streams need positions='transformer_xl' and causal=False")
        super().__init__(config, use_bias=True, **kwargs)
        if not all(block.takes_queries for block in self.encoder.stack.blocks):
            raise ValueError("two streams need block='transformer', which hides a query's token")
        self.pooler = Pooler(config.initializer_range, name="pooler") if pooler else None

    def build(self, input_shape=None):
        super().build(input_shape)
        config = self.config
        initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
        shape = (config.hidden_dim,)
        self.query_vector = self.add_weight(shape, initializer, name="query_vector")
        if self.pooler:
            self.pooler.build((None, None, config.hidden_dim))

    def call(self, inputs, training=None):
        memory = inputs.get("memory")
        if memory is None:
            memory = self.init_memory(ops.shape(inputs["token_ids"])[0])
        content, query, memory = self.two_streams(inputs, memory, training=training)
        streams = {"content": content, "query": query, "memory": memory}
        return {"masked_language": self.logits(query), **streams}

    def two_streams(self, inputs, memory, training=None):
        """Computes the next segment: content `(B, L, D)`, queries `(B, P, D)` and the new memory.

        References: Yang et al. 2019 (XLNet), section 2.3.
        """
        order = inputs["order"]
        context = Context(
            mask=ops.not_equal(inputs["token_ids"], self.config.pad_id),
            attention_mask=order[:, None, :] <= order[:, :, None],  # (B, L, L)
            segment_ids=inputs.get("segment_ids"),
            two_streams=True,
            backward=inputs.get("backward"),
            training=training,
        )
        content = self.encoder.embed(inputs, training=training)
        positions = ops.one_hot(inputs["masked_positions"], ops.shape(order)[1])  # (B, P, L)
        query = ops.cast(ops.convert_to_tensor(self.query_vector), content.dtype)
        # (D,) -> (B, P, D)
        query = ops.zeros_like(positions[..., :1], dtype=content.dtype) + query
        query = self.encoder.embeddings.drop(query, training=training)
        content, states = self.encoder.stack.mix(content, context, memory)
        # In the second pass, queries attend to the keys of the content stream in each layer.
        memory, keys = ([[pair[i] for pair in block] for block in states] for i in (0, 1))
        lower_order = order[:, None, :] < order[:, :, None]
        changes = {"attention_mask": lower_order, "query_positions": positions}
        context = dataclasses.replace(context, **changes)
        query, _ = self.encoder.stack.mix(query, context, keys)
        return content, query, memory
