"""The encoder-decoder of translation, with any block."""

import keras
from keras import ops

from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.positions import SinusoidalPositions
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.stack import Stack
from macaron_tf.special_ids import PAD


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderDecoder(ConfiguredModel):
    """Source ids and the target so far to scores of the next target token.

    One table embeds source and target and projects to the vocabulary. Id 0 is padding in both.

    Args:
        config: an `EncoderDecoderConfig`.

    Call arguments: `{"source": (B, S), "target": (B, T)}`, int ids; the target is the decoder's
    input, shifted right by the caller. Returns logits `(B, T, V)`.

    Example:
        model = EncoderDecoder(EncoderDecoderConfig(1000, 128, 256, 4, 2, 2, block="macaron"))
        logits = model({"source": source_ids, "target": target_ids})

    References: Vaswani et al. 2017; with Macaron blocks, Lu et al. 2019.
    """

    config_class = EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, name: str = "encoder_decoder", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.embedding = TiedEmbedding(
            config.vocab_size, config.hidden_dim, dtype=policy, name="embedding"
        )
        self.positions = SinusoidalPositions(
            layout=config.position_layout, dtype=policy, name="positions"
        )
        self.source_dropout = Dropout(config.dropout, dtype=policy)
        self.target_dropout = Dropout(config.dropout, dtype=policy)
        options = {
            name: getattr(config, name)
            for name in (
                "num_heads",
                "feed_forward_dim",
                "dropout",
                "attention_dropout",
                "activation_dropout",
                "activation",
                "norm",
                "epsilon",
            )
        }
        layer = {"block": config.block}
        self.encoder = Stack(
            [layer] * config.num_encoder_layers, options, dtype=policy, name="encoder"
        )
        self.decoder = Stack(
            [layer] * config.num_decoder_layers,
            {**options, "causal": True, "cross_attention": True},
            dtype=policy,
            name="decoder",
        )

    def build(self, input_shape=None):
        hidden_shape = (None, None, self.config.hidden_dim)
        self.embedding.build()
        self.positions.build(hidden_shape)
        self.encoder.build(hidden_shape)
        self.decoder.build(hidden_shape, hidden_shape)
        self.built = True

    def call(self, inputs, training=None):
        return self.logits(self.hidden_states(inputs, training=training))

    def encode(self, source, training=None):
        """Source ids `(B, S)` to the memory `(B, S, D)`."""
        x = self.source_dropout(self.positions(self.embedding(source)), training=training)
        return self.encoder(x, attention_mask=self.padding_mask(source), training=training)

    def hidden_states(self, inputs, training=None):
        """The decoder's output `(B, T, D)`, before the vocabulary: `call` without `logits`."""
        source, target = inputs["source"], inputs["target"]
        memory = self.encode(source, training=training)
        x = self.target_dropout(self.positions(self.embedding(target)), training=training)
        # Padding is at the end of a target, where the causal mask hides it from every real token.
        return self.decoder(
            x, memory=memory, memory_mask=self.padding_mask(source), training=training
        )

    def logits(self, hidden):
        """Scores of every token of the vocabulary: `(..., D) -> (..., V)`."""
        return self.embedding.logits(hidden)

    def start(self, source, beam_size: int, max_length: int | None = None):
        """Begins cached decoding of K hypotheses a sentence.

        Args:
            source: ids `(B, S)`.
            beam_size: K.
            max_length: T, fixed room in the cache for this many target tokens, as XLA needs it.
                With None the cache starts empty, an axis of 0, and grows with every step: faster
                without XLA, and the loop must let that axis vary.

        Returns:
            `context`, constant while decoding, and the empty `cache`, tensors `(B, K, ...)`, to
            be reordered along axis 1 with the hypotheses.
        """
        memory = self.encode(source, training=False)
        context = {
            "memory": self.decoder.start(memory),
            "memory_mask": self.padding_mask(source),
        }
        if max_length is not None:
            # XLA transposes the table anew for each product with it: on a CPU 30 ms a step for
            # 10,000 x 512, against 1 ms for the product. TensorFlow's own kernels do not.
            table = ops.cast(ops.convert_to_tensor(self.embedding.table), "float32")
            context["table"] = ops.transpose(table)
        cache = self.decoder.empty_cache(ops.shape(source)[0], beam_size, max_length)
        return context, {"growing" if max_length is None else "fixed": cache}

    def step(self, tokens, index, context, cache):
        """Scores of the next token of each hypothesis.

        Args:
            tokens: ids `(B, K)`, the tokens at position `index` of the decoder's input.
            index: scalar int32, 0 for BOS.
            context: from `start`. cache: from `start` or the last step.

        Returns:
            float32 logits `(B, K, V)` and the new cache.
        """
        # The K hypotheses stand where positions usually do: each gets the encoding of `index`.
        x = ops.reshape(self.embedding(tokens), (-1, 1, self.config.hidden_dim))  # (B K, 1, D)
        x = self.positions(x, start_index=index)
        x = ops.reshape(x, (-1, self.config.hidden_dim))  # (B K, D)
        [(kind, past)] = cache.items()
        x, past = self.decoder.step(
            x,
            index if kind == "fixed" else None,
            context["memory"],
            past,
            memory_mask=context["memory_mask"],
        )
        # In float32 under any policy: near 10 bfloat16 has steps of 1/16, which makes ties.
        x = ops.cast(x, "float32")
        logits = ops.matmul(x, context["table"]) if "table" in context else self.logits(x)
        # (B K, V) -> (B, K, V)
        logits = ops.reshape(logits, (-1, tokens.shape[1], self.config.vocab_size))
        return logits, {kind: past}

    @staticmethod
    def padding_mask(ids):
        """True where an id is a token: `(B, L) -> (B, L)`."""
        return ops.not_equal(ids, PAD)

    def compute_output_shape(self, input_shape):
        return (*input_shape["target"], self.config.vocab_size)
