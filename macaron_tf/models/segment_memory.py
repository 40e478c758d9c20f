"""Models with a memory of earlier segments: Transformer-XL and XLNet."""

from typing import Any

import keras
from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.mixer import Context
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel, TokenModel
from macaron_tf.special_ids import PAD


class SegmentMemory:
    """Transformer-XL memory: row b of the next batch continues row b of this one.

    Its variables are not weights of the network, so the same weights work with any number of texts
    and any length of the memory. Each replica has its own rows.

    With several turns there is a memory for each micro-batch of an update, and each micro-batch has
    its own texts. Index 0 is read next; `write` moves all memories up by one.

    Args:
        empty: nested tensors `(B, ...)`, from the network's `init_memory`.
        turns: number of batches until the first one's texts continue.

    Attributes:
        variables: the variables, `(B, turns, ...)` each.
    """

    def __init__(self, empty: Any, turns: int = 1):
        self._held = keras.tree.map_structure(lambda value: _variable(value, turns), empty)
        self.variables: list[keras.Variable] = keras.tree.flatten(self._held)

    def read(self, starts=None):
        """The memory; rows where `starts (B,)` is True are empty, because a text begins there."""

        def kept(variable):
            value = ops.convert_to_tensor(variable)[:, 0]
            if starts is None:
                return value
            begins = ops.reshape(starts, (-1, *[1] * (len(value.shape) - 1)))
            return ops.where(begins, ops.zeros_like(value), value)

        return keras.tree.map_structure(kept, self._held)

    def write(self, memory) -> None:
        """Stores a new memory, with the structure that `read` returns."""
        for variable, value in zip(self.variables, keras.tree.flatten(memory), strict=True):
            value = value[:, None]  # (B, ...) -> (B, 1, ...)
            if variable.shape[1] > 1:
                later = ops.convert_to_tensor(variable)[:, 1:]
                value = ops.concatenate([later, value], axis=1)
            variable.assign(value)


class KeepsMemory:
    """Base class of networks whose memory of earlier segments lasts across training batches.

    Attributes:
        memory_length: M, the number of earlier positions that attention sees.
        memories: the memories `"training"` and `"evaluation"`; None before `keep_memory`.
    """

    encoder: Encoder
    memory_length: int
    memories: dict[str, SegmentMemory] | None = None

    def init_memory(self, batch_size):
        """The memory before a text, see `Mixer.init_memory`."""
        return self.encoder.stack.init_memory(batch_size, self.memory_length)

    def keep_memory(self, rows: int, turns: int = 1) -> None:
        """Makes the variables for the memory of a replica's batches.

        Args:
            rows: B, the number of texts.
            turns: number of micro-batches per update in training, each with its own texts.
        """
        empty = self.init_memory(rows)
        self.memories = {
            "training": SegmentMemory(empty, turns),
            "evaluation": SegmentMemory(empty),
        }


def _variable(value, turns: int) -> keras.Variable:
    return keras.Variable(
        ops.repeat(ops.zeros_like(value)[:, None], turns, axis=1),
        dtype=keras.backend.standardize_dtype(value.dtype),
        trainable=False,
        autocast=False,
        # Each replica reads and writes its own memory.
        synchronization="on_read",
        aggregation="only_first_replica",
        name="segment_memory",
    )


class SegmentLanguageModel(KeepsMemory, LanguageModel):
    """A `LanguageModel` with a memory of earlier segments (Transformer-XL).

    In every layer, attention remembers its inputs at the last M positions, and a recurrence its
    state; no gradient flows through either. `call` computes a segment without a memory.

    Args:
        config: configuration of the encoder, with `causal=True` and `positions="transformer_xl"`.
        memory_length: M.

    In cached decoding a token sees itself and the last M tokens, so every step costs the same.

    Example:
        memory = model.init_memory(batch_size)
        for segment in segments:  # (B, L) each
            hidden, memory = model.with_memory({"token_ids": segment}, memory)
            logits = model.logits(hidden)

    References: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
    Context".
    """

    def __init__(self, config: EncoderConfig, memory_length: int, **kwargs):
        if not config.relative:
            raise ValueError(
                f"positions={config.positions!r}: a memory of earlier segments needs "
                "positions='transformer_xl'"
            )
        check_count("memory_length", memory_length)
        super().__init__(config, **kwargs)

    def with_memory(self, inputs, memory, training=None):
        """The output `(B, L, D)` for the next segment, and the new memory: see `Encoder`."""
        return self.encoder.with_memory(inputs, memory, training=training)

    def init_decode(self, batch_size, beams: int, max_length: int | None = None):
        """See `LanguageModel.init_decode`; the cache holds M tokens, whatever `max_length` is."""
        context, _ = super().init_decode(batch_size, beams)
        cache = self.encoder.stack.init_cache(batch_size, beams, self.memory_length)
        return context, {"fixed": cache}


class TwoStreamModel(KeepsMemory, TokenModel):
    """XLNet: predicts tokens in any order, with a content stream (the encoder) and a query stream.

    `order (B, L)` int decides what is visible: a content vector sees tokens of its own and lower
    order, a query only those of lower order. Tokens of order -1 are given. The others are predicted
    one after the other, from the given tokens, those predicted before, and a memory of earlier
    segments.

    Args:
        config: configuration of the encoder: `positions="transformer_xl"`, not causal, and blocks
            whose channel mixers see one position only, `transformer` or `macaron`.
        memory_length: M, the number of earlier positions that attention sees.

    Call arguments: a dict of `token_ids (B, L)` int, 0 at padding; `order (B, L)` int;
    `masked_positions (B, P)` int, the positions to predict, -1 at padding; and optionally
    `segment_ids (B, L)` int, `backward (B,)` bool, True for rows that are read from the end of
    their text, and `memory`, from `init_memory`. Returns a dict: `masked_language`, logits
    `(B, P, V)`; `content (B, L, D)`; `query (B, P, D)`; and `memory`.

    References: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
    Understanding", sections 2.2 to 2.5.
    """

    input_names = None

    def __init__(self, config: EncoderConfig, memory_length: int, **kwargs):
        if not config.relative or config.causal:
            raise ValueError("two streams need positions='transformer_xl' and causal=False")
        check_count("memory_length", memory_length)
        super().__init__(config, use_bias=True, **kwargs)
        for block in self.encoder.stack.blocks:
            if not block.takes_queries:
                raise ValueError(
                    f"two streams are not possible with a {type(block).__name__}, which would show "
                    "a query its own token: take transformer or macaron blocks"
                )

    def build(self, input_shape=None):
        super().build(input_shape)
        config = self.config
        self.query_vector = self.add_weight(
            name="query_vector",
            shape=(config.hidden_dim,),
            initializer=keras.initializers.TruncatedNormal(stddev=config.initializer_range),
        )

    def call(self, inputs, training=None):
        memory = inputs.get("memory")
        if memory is None:
            memory = self.init_memory(ops.shape(inputs["token_ids"])[0])
        content, query, memory = self.two_streams(inputs, memory, training=training)
        return {
            "masked_language": self.logits(query),
            "content": content,
            "query": query,
            "memory": memory,
        }

    def two_streams(self, inputs, memory, training=None):
        """Computes the next segment: content `(B, L, D)`, queries `(B, P, D)` and the new memory.

        References: Yang et al. 2019 (XLNet), section 2.3.
        """
        order = inputs["order"]
        context = Context(
            mask=ops.not_equal(inputs["token_ids"], PAD),
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
        content, kept = self.encoder.stack.mix(content, context, memory)
        # In a second pass, queries attend the content stream's keys of each layer.
        memory, keys = ([[pair[i] for pair in block] for block in kept] for i in (0, 1))
        context = context.replace(
            attention_mask=order[:, None, :] < order[:, :, None], query_positions=positions
        )
        query, _ = self.encoder.stack.mix(query, context, keys)
        return content, query, memory
