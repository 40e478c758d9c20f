"""XLNet: a model of two streams that share weights, learning in any order of the tokens."""

import keras
from keras import ops

from macaron_tf.layers.language_heads import NextTokenHead
from macaron_tf.models.config import ConfiguredModel, EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.memory import KeepsMemory
from macaron_tf.special_ids import PAD


@keras.saving.register_keras_serializable(package="macaron_tf")
class TwoStreamModel(KeepsMemory, ConfiguredModel):
    """Tokens in any order: a content stream that is the encoder, and queries for what is guessed.

    `order (B, L)` int says who sees whom: a content sees those of its own order and lower, a query
    those below its own. Tokens of order -1 are given; the others are guessed one after the other,
    each from the given ones and those guessed before it, and from a memory of earlier segments.

    Args:
        config: of the encoder, `positions="transformer_xl"`, not causal, of blocks whose mixers of
            channels see one position alone: `transformer` or `macaron`.
        memory_length: M, positions of earlier segments that attention sees.

    Call arguments: a dict of `token_ids (B, L)` int, 0 being padding, `order (B, L)` int,
    `masked_positions (B, P)` int, which are guessed, and optionally `segment_ids (B, L)` int and
    `past` of `empty_past`. Returns a dict: `masked_language`, logits `(B, P, V)`; `content
    (B, L, D)`, `query (B, P, D)` and `past`.

    Raises:
        ValueError: another kind of positions, a causal configuration, or M is 0 or less.

    References: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language
    Understanding", sections 2.2 to 2.5.
    """

    def __init__(
        self, config: EncoderConfig, memory_length: int, name: str = "two_stream", **kwargs
    ):
        super().__init__(name=name, **kwargs)
        if config.relative is None or config.causal:
            raise ValueError("two streams need positions='transformer_xl' and causal=False")
        if memory_length < 1:
            raise ValueError(f"memory_length={memory_length} must be 1 or more")
        self.config = config
        self.memory_length = memory_length
        self.pooler = None  # BERT's: what is made of another network's weights asks for it
        policy = self.dtype_policy
        self.encoder = Encoder(config, dtype=policy)
        self.language_head = NextTokenHead(
            config.vocab_size,
            True,
            config.initializer_range,
            dtype=policy,
            name="language_head",
        )

    def build(self, input_shape=None):
        config = self.config
        self.encoder.build()
        self.language_head.build(
            (None, None, config.hidden_dim), (config.vocab_size, config.embedding_width)
        )
        self.query_vector = self.add_weight(
            name="query_vector",
            shape=(config.hidden_dim,),
            initializer=keras.initializers.TruncatedNormal(stddev=config.initializer_range),
        )
        self.built = True

    def call(self, inputs, training=None):
        past = inputs.get("past")
        if past is None:
            past = self.empty_past(ops.shape(inputs["token_ids"])[0])
        content, query, past = self.two_streams(inputs, past, training=training)
        return {
            "masked_language": self.masked_logits(query),
            "content": content,
            "query": query,
            "past": past,
        }

    def empty_past(self, batch_size):
        """What is kept before a text: see `Stack.empty_past`."""
        return self.encoder.stack.empty_past(batch_size, self.memory_length)

    def two_streams(self, inputs, past, training=None):
        """The next segment of a text: h `(B, L, D)`, g `(B, P, D)` and the new past.

        Args:
            inputs: as of `call`.
            past: from `empty_past` or the last segment.
        """
        order = inputs["order"]
        length = ops.shape(order)[1]
        places = ops.one_hot(inputs["masked_positions"], length)  # (B, P, L)
        content = self.encoder.embed(inputs, training=training)
        query = ops.cast(ops.convert_to_tensor(self.query_vector), content.dtype)
        # (D,) -> (B, P, D)
        query = ops.zeros_like(places[..., :1], dtype=content.dtype) + query
        query = self.encoder.embeddings.drop(query, training=training)
        return self.encoder.stack.two_streams(
            content,
            query,
            past,
            ops.not_equal(inputs["token_ids"], PAD),
            content_mask=order[:, None, :] <= order[:, :, None],
            query_mask=order[:, None, :] < order[:, :, None],
            places=places,
            segment_ids=inputs.get("segment_ids"),
            training=training,
        )

    def masked_logits(self, query):
        """Scores of every token: `(..., D) -> (..., V)`."""
        table = ops.convert_to_tensor(self.encoder.embeddings.tokens.table)
        return self.language_head(query, ops.cast(table, query.dtype))

    def get_config(self):
        return {**super().get_config(), "memory_length": self.memory_length}
