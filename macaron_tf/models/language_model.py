"""Causal language models with any type of block, such as GPT, GPT-2, GPT-3 and Llama."""

from keras import ops

from macaron_tf.layers.embeddings import AdaptiveEmbedding
from macaron_tf.layers.language_heads import AdaptiveSoftmax, NextTokenHead
from macaron_tf.models.base import Network, step_context
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.settings import SettingError


class TokenModel(Network):
    """Base class of encoders with a head that predicts tokens.

    The head is a `NextTokenHead`, with a bias if `use_bias`, or, with `adaptive_cutoffs`, an
    `AdaptiveSoftmax`.
    """

    def __init__(self, config: EncoderConfig, use_bias: bool, **kwargs):
        super().__init__(config, **kwargs)
        self.encoder = Encoder(config)
        options = config.options("vocab_size", "initializer_range", "tied")
        if config.adaptive_cutoffs:
            options |= {"cutoffs": config.adaptive_cutoffs, "divisor": config.adaptive_divisor}
            self.language_head = AdaptiveSoftmax(**options, name="adaptive_softmax")
        else:
            self.language_head = NextTokenHead(**options, use_bias=use_bias, name="language_head")

    def build(self, input_shape=None):
        vectors = (None, None, self.config.hidden_dim)
        self.encoder.build()
        self.language_head.build(vectors, (self.config.vocab_size, self.config.embedding_width))

    def logits(self, hidden):
        """Computes the logits over the vocabulary: `(..., D) -> (..., V)`."""
        return self.language_head(hidden, self.table(hidden.dtype))

    def table(self, dtype):
        """Returns the argument `table` of the head.

        It is the embedding table `(V, E)`, the head's `output_table` in an untied model, or one
        pair of matrices per cluster of adaptive embeddings (see `AdaptiveEmbedding.tables`).
        """
        tokens = self.encoder.embeddings.tokens
        if isinstance(tokens, AdaptiveEmbedding):
            return tokens.tables(dtype)
        untied = not (self.config.tied or self.config.adaptive_cutoffs)
        return (self.language_head.output_table if untied else tokens).matrix(dtype)


class LanguageModel(TokenModel):
    """Causal language model, which predicts the next token at each position.

    The inputs are those of `Encoder`. The output contains logits `(B, L, V)` or, with
    `config.adaptive_cutoffs`, log-probabilities. The values at position t are for the token at
    position t + 1.

    Example:
        model = LanguageModel(EncoderConfig(1000, 128, 512, 2, 2, causal=True, norm="pre"))
        logits = model({"token_ids": token_ids})

    References: Radford et al. 2018 (GPT), eq. 2; Radford et al. 2019 (GPT-2); Lei et al. 2022 for
    SwishRNN.
    """

    def __init__(self, config: EncoderConfig, **kwargs):
        if not config.causal:
            raise ValueError("a language model needs causal attention: set causal=True")
        super().__init__(config, config.output_bias, **kwargs)

    def init_decode(self, batch_size, beams: int, max_length: int | None = None):
        """Starts cached decoding with K texts per row (see `EncoderDecoder.init_decode`).

        If a mixer has no cached decoding, the cache contains only the ids so far, and every step
        computes the whole text again.
        """
        self.config.check_length(max_length)
        context = {}
        if not self.config.adaptive_cutoffs:
            # The table is transposed only once, as in `EncoderDecoder.init_decode`.
            context["table"] = ops.transpose(self.table("float32"))
        try:
            cache = self.encoder.stack.init_cache(batch_size, beams, max_length)
        except SettingError:
            shape = (batch_size, beams, max_length or 0)
            cache = {"ids": ops.full(shape, self.config.pad_id, dtype="int32")}
        return context, {"growing" if max_length is None else "fixed": cache}

    @property
    def has_cached_decoding(self) -> bool:
        """Whether all mixers decode with a cache. Otherwise, a step computes the whole text."""
        try:
            return bool(self.encoder.stack.init_cache(1, 1, 1))
        except SettingError:
            return False

    def decode_step(self, tokens, index, context, cache, with_hidden: bool = False):
        """Computes the logits of the next token for each text (see `EncoderDecoder.decode_step`).

        `tokens (B, K)` must not be padding. `with_hidden` adds a third result: the hidden states
        `(B K, D)` from which the logits are computed.
        """
        [(kind, state)] = cache.items()
        if isinstance(state, dict):
            state = self._extended(kind, state, tokens[:, :, None], index)
            length = ops.shape(state["ids"])[-1]
            x = self.encoder(ops.reshape(state["ids"], (-1, length)), training=False)
            x = ops.take(x, index, axis=1)  # (B K, T, D) -> (B K, D)
        else:
            # (B, K) -> (B K, 1) -> (B K, D): each text is a row.
            x, mix_context = self._embedded(ops.reshape(tokens, (-1, 1)), index, context, kind)
            x = ops.reshape(x, (-1, self.config.hidden_dim))
            x, state = self.encoder.stack.mix(x, mix_context, state)
        # Scores are float32 under any dtype policy, as in `EncoderDecoder.decode_step`.
        transposed = "table" in context
        table = context["table"] if transposed else self.table("float32")
        logits = self.language_head(x, table, transposed=transposed)
        # (B K, V) -> (B, K, V)
        logits = ops.reshape(logits, (-1, tokens.shape[1], self.config.vocab_size))
        return (logits, {kind: state}, x) if with_hidden else (logits, {kind: state})

    @property
    def can_prefill(self) -> bool:
        """Whether `prefill` is supported. All mixers must support prefill."""
        return self.encoder.stack.can_prefill

    def prefill(self, tokens, index, context, cache):
        """Adds the next L tokens of each text to the cache, in one pass instead of L steps.

        `tokens (B, L)` from position `index` on must not be padding. `cache` has one text per row,
        `(B, 1, ...)`.
        """
        [(kind, state)] = cache.items()
        if isinstance(state, dict):
            return {kind: self._extended(kind, state, tokens[:, None], index)}
        _, state = self.encoder.stack.mix(*self._embedded(tokens, index, context, kind), state)
        return {kind: state}

    def _extended(self, kind: str, state, ids, index):
        """Adds ids `(B, K, L)` from position `index` on to the ids of the texts so far."""
        if kind == "growing":
            return {"ids": ops.concatenate([state["ids"], ids], axis=-1)}
        return {"ids": ops.slice_update(state["ids"], (0, 0, index), ids)}

    def _embedded(self, ids, index, context, kind: str):
        """Returns the first block's input and `Context` for ids `(B, L)` from `index` on."""
        positions = ops.arange(ops.shape(ids)[1], dtype="int32") + ops.cast(index, "int32")
        inputs = {"token_ids": ids, "position_ids": positions[None]}
        x = self.encoder.embed(inputs, training=False)
        return x, step_context(context, kind, positions, index)
