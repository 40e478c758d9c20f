"""XLNet: a model of two streams that share weights and learn in any order of the tokens."""

import keras
from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.mixer import Context
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.language_model import TokenModel
from macaron_tf.models.memory import KeepsMemory
from macaron_tf.special_ids import PAD


class TwoStreamModel(KeepsMemory, TokenModel):
    """Tokens in any order: a content stream, which is the encoder, and queries for the guesses.

    `order (B, L)` int says who sees whom: a content sees those of its own order and lower, a query
    those below its own. Tokens of order -1 are given; the others are guessed one after the other,
    each from the given ones and those guessed before it, and from a memory of earlier segments.

    Args:
        config: of the encoder, `positions="transformer_xl"`, not causal, of blocks whose mixers of
            channels see one position alone: `transformer` or `macaron`.
        memory_length: M, positions of earlier segments that attention sees.

    Call arguments: a dict of `token_ids (B, L)` int, 0 being padding, `order (B, L)` int,
    `masked_positions (B, P)` int, which are guessed, and optionally `segment_ids (B, L)` int and
    `memory` of `init_memory`. Returns a dict: `masked_language`, logits `(B, P, V)`; `content
    (B, L, D)`, `query (B, P, D)` and `memory`.

    References: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
    Understanding", sections 2.2 to 2.5.
    """

    def __init__(self, config: EncoderConfig, memory_length: int, **kwargs):
        if not config.relative or config.causal:
            raise ValueError("two streams need positions='transformer_xl' and causal=False")
        check_count("memory_length", memory_length)
        super().__init__(config, use_bias=True, **kwargs)
        for block in self.encoder.stack.blocks:
            if not block.takes_queries:
                raise ValueError(
                    f"two streams with a {type(block).__name__} are not possible: it would tell a "
                    "query its own token; take transformer or macaron blocks"
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
        """The next segment of a text: h `(B, L, D)`, g `(B, P, D)` and the new memory.

        References: Yang et al. 2019 (XLNet), section 2.3.
        """
        order = inputs["order"]
        context = Context(
            mask=ops.not_equal(inputs["token_ids"], PAD),
            attention_mask=order[:, None, :] <= order[:, :, None],  # (B, L, L)
            segment_ids=inputs.get("segment_ids"),
            two_streams=True,
            training=training,
        )
        content = self.encoder.embed(inputs, training=training)
        positions = ops.one_hot(inputs["masked_positions"], ops.shape(order)[1])  # (B, P, L)
        query = ops.cast(ops.convert_to_tensor(self.query_vector), content.dtype)
        # (D,) -> (B, P, D)
        query = ops.zeros_like(positions[..., :1], dtype=content.dtype) + query
        query = self.encoder.embeddings.drop(query, training=training)
        content, kept = self.encoder.stack.mix(content, context, memory)
        # A second pass: the queries attend the contents' keys, layer by layer.
        memory, keys = ([[pair[i] for pair in block] for block in kept] for i in (0, 1))
        context = context.replace(
            attention_mask=order[:, None, :] < order[:, :, None], query_positions=positions
        )
        query, _ = self.encoder.stack.mix(query, context, keys)
        return content, query, memory
