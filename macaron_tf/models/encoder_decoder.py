"""Encoder-decoder for translation, T5 and BART, with any block that decodes token by token."""

import functools
from typing import ClassVar

import keras
from keras import ops

from macaron_tf.layers.attention import combine_masks
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.embeddings import EncoderEmbeddings, TiedEmbedding
from macaron_tf.layers.mixer import Context
from macaron_tf.layers.scheme import scheme_text
from macaron_tf.models import config as configs
from macaron_tf.models.base import Network, attention_mask, padding_mask, step_context
from macaron_tf.models.config import DROPOUTS, EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.stack import Stack
from macaron_tf.special import Special
from macaron_tf.variables import declare, spec_of


def shift_right(target, first: int | bool = Special.begin):
    """Shifts the target `(..., T)` right by one position, behind `first`, for the decoder."""
    return ops.concatenate([ops.full_like(target[..., :1], first), target[..., :-1]], axis=-1)


class EncoderDecoder(Network):
    """Encoder-decoder, which predicts the next target token at each target position.

    Source and target share one embedding table, which is also the output matrix unless
    `config.tied` is False. `config.pad_id` is padding in source and target. Target padding may only
    be at the end, unless `target_mask` hides the padding. With `config.num_source_layers`, an
    additional encoder reads the source, which may have another vocabulary. The output of this
    encoder replaces the source's token embeddings.

    A call takes a dict with these inputs:

        source (B, S)            int
        target (B, T)            int, the target shifted right by one position
        source_languages (B, S)  int, optional, with `config.two_way`
        target_languages (B, T)  int, optional, with `config.two_way`
        padding_mask (B, S)      padding mask of the source, optional
        attention_mask (B, S, S) attention mask of the source, optional
        target_mask (B, T)       mask of the target, optional, also accepted as (B, T, T)

    In the language inputs, 0 (the default) means the side's own language and 1 means the other
    language. `Encoder` describes the masks. The output contains logits `(B, T, V)`.

    Example:
        model = EncoderDecoder(EncoderDecoderConfig(1000, 128, 256, 4, 2, 2, block="macaron"))
        logits = model({"source": source_ids, "target": target_ids})

    References: Vaswani et al. 2017; Lu et al. 2019 for Macaron blocks; Raffel et al. 2020 (T5),
    section 2.1; Lewis et al. 2020 (BART), sections 2.1 and 3.4.
    """

    can_prefill = False
    num_required = 2
    input_names: ClassVar = {
        "source": ("input_ids", "encoder_token_ids"),
        "target": ("decoder_input_ids", "decoder_token_ids"),
        "source_languages": (),
        "target_languages": (),
        "padding_mask": ("encoder_padding_mask",),
        "attention_mask": (),
        "target_mask": ("decoder_attention_mask", "decoder_padding_mask"),
    }

    def __init__(self, config: EncoderDecoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        initializer = keras.initializers.get(config.initializer)
        if config.initializer_range is not None:
            initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
        # The standard deviation of the embeddings is 1, or D^-1/2 if they are multiplied by
        # sqrt(D).
        embedding_stddev = config.hidden_dim**-0.5 if config.embedding_scale else 1.0
        embedding_initializer = keras.initializers.RandomNormal(stddev=embedding_stddev)
        if config.initializer_range is not None:
            embedding_initializer = initializer.clone()
        options = {"scale": config.embedding_scale, "initializer": embedding_initializer}
        options |= config.options("vocab_size", "hidden_dim")
        self.embedding = TiedEmbedding(**options, name="embedding")
        options = config.embedding_options() | config.options("position_layout")
        options |= {"embedding_dim": config.hidden_dim, "num_segments": 0}
        options |= {"num_languages": 2 if config.two_way else int(config.language_embeddings)}
        options |= {"initializer_range": config.initializer_range or 0.02}
        self.source_embeddings, self.target_embeddings = (
            EncoderEmbeddings(**options, tokens=self.embedding, name=name)
            for name in ("source_embeddings", "target_embeddings")
        )
        # T5's code initializes relative biases with standard deviation D^-1/2.
        bias_range = config.initializer_range or config.hidden_dim**-0.5
        options = {"kernel_initializer": initializer, "bias_range": bias_range}
        self.encoder = Stack(config, config.num_encoder_layers, **options, name="encoder")
        options |= {"causal": True, "cross_attention": True}
        self.decoder = Stack(config, config.num_decoder_layers, **options, name="decoder")
        self.output_projection = None
        if not config.tied:
            options = {"use_bias": False, "kernel_initializer": initializer.clone()}
            self.output_projection = Dense(config.vocab_size, **options, name="output_projection")
        self.source_encoder = None
        if config.num_source_layers:
            # The source encoder has the model's blocks and sizes.
            fields = {**configs.architecture_of(config), **config.options(*DROPOUTS)}
            fields |= {"embedding_scale": False, "num_layers": config.num_source_layers}
            fields["scheme"] = scheme_text(config.splitting(), without=("memory",)) or None
            source_config = EncoderConfig(
                vocab_size=config.source_vocab_size or config.vocab_size,
                num_segments=0,
                initializer_range=config.initializer_range or config.hidden_dim**-0.5,
                **fields,
            )
            self.source_encoder = Encoder(source_config, name="source_encoder")
        self.reads = ("tied",)
        self.reads += ("position_layout",) if config.positions == "sinusoidal" else ()
        self.reads += () if config.positions in configs.BY_ATTENTION else ("positions",)
        self.reads += () if config.initializer_range else ("initializer",)

    def build(self, input_shape=None):
        vectors = (None, None, self.config.hidden_dim)
        for layer in self.layers:  # in this order they draw their initial weights
            layer.build(vectors, *([vectors] if layer is self.decoder else []))
        if self.output_projection:
            declare(self.output_projection.kernel, ("embed", "vocab"))
        self.logits_bias = None
        if self.config.logits_bias:
            shape, options = (self.config.vocab_size,), {"name": "logits_bias", "axes": ("vocab",)}
            self.logits_bias = self.add_weight(shape, "zeros", **options)

    def encode(self, source, training=None, languages=None, masks=None):
        """Encodes the source ids `(B, S)` to the memory `(B, S, D)`.

        `languages` are ids `(B, S)`, by default 0. `masks` may have `padding_mask` and
        `attention_mask`.
        """
        vectors, inputs = None, {"token_ids": source, **(masks or {})}
        if self.source_encoder:
            vectors = self.source_encoder(inputs, training=training)  # (B, S, D)
        options = {"language_ids": languages, "vectors": vectors}
        x = self.source_embeddings(source, **options, training=training)
        mask = padding_mask(inputs, self.config.pad_id)
        context = Context(mask=mask, attention_mask=attention_mask(inputs), training=training)
        return self.encoder.mix(x, context)[0]

    def hidden_states(self, inputs, training=None):
        """Returns the decoder's output `(B, T, D)`, the input of the method `logits`."""
        source, target = inputs["source"], inputs["target"]
        names = ("padding_mask", "attention_mask")
        masks = {name: inputs[name] for name in names if name in inputs}
        memory = self.encode(source, training, inputs.get("source_languages"), masks)
        languages = inputs.get("target_languages")
        x = self.target_embeddings(target, language_ids=languages, training=training)
        real = padding_mask({"token_ids": source, **masks}, self.config.pad_id)
        # Targets have padding only at the end, where the causal mask hides the padding from real
        # tokens.
        context = Context(
            attention_mask=attention_mask({"attention_mask": inputs.get("target_mask")}),
            memory=memory,
            memory_mask=combine_masks(real, inputs.get("memory_mask")),
            training=training,
        )
        return self.decoder.mix(x, context)[0]

    def logits(self, hidden, kernel=None):
        """Computes the logits over the vocabulary: `(..., D) -> (..., V)`.

        `kernel` is an output matrix `(D, V)`. `None` means the model's own.
        """
        if self.config.scaled_logits:
            hidden = ops.multiply(hidden, self.config.hidden_dim**-0.5)
        if kernel is not None:
            logits = ops.matmul(hidden, kernel)
        elif self.output_projection:
            logits = self.output_projection(hidden)
        else:
            logits = self.embedding.logits(hidden)
        if self.logits_bias is None:
            return logits
        return ops.add(logits, ops.cast(self.logits_bias, logits.dtype))

    def init_decode(
        self, source, beams: int, max_length: int | None = None, backward: bool = False
    ):
        """Starts cached decoding with K = `beams` hypotheses per source sequence `(B, S)`.

        Returns the `context`, which is constant during decoding and has tensors `(B, ...)` in
        `context["rows"]`, and the empty `cache` of tensors `(B, K, ...)`, whose axis 1 a caller
        that reorders hypotheses must reorder.

        Args:
            max_length: capacity T of the cache in target tokens. XLA requires it. Without, the
                cache starts with an axis of size 0 and grows with every step, which is faster
                without XLA, but a loop must allow the shape of this axis to change.
            backward: whether to translate from the target language to the source language (with
                `config.two_way`).
        """
        self.config.check_length(max_length)
        languages = ops.ones_like(source) if backward else None
        memory = self.encode(source, training=False, languages=languages)
        rows = {
            "memory_keys": self.decoder.project_memory(memory),
            "memory_mask": ops.not_equal(source, self.config.pad_id),
        }
        if self.output_projection:
            kernel = self.output_projection.matrix("float32")
        else:
            # The table is transposed once per search. On two cores, the product of 128 rows and 512
            # x 10,000 weights then takes 7.0 ms instead of 11.3 ms. XLA would transpose the table
            # in each step.
            kernel = ops.transpose(self.embedding.matrix("float32"))
        context = {"rows": rows, "kernel": kernel, "backward": backward}
        cache = self.decoder.init_cache(ops.shape(source)[0], beams, max_length)
        return context, {"growing" if max_length is None else "fixed": cache}

    def decode_step(self, tokens, index, context, cache):
        """Computes the float32 logits `(B, K, V)` of the next token, and the new cache.

        `tokens (B, K)` are at position `index`, scalar int32, of the decoder's input: 0 at the
        start token. `context` and `cache` come from `init_decode` or the previous step.
        """
        # Each hypothesis becomes a row: (B, K) -> (B K, 1).
        positions = ops.reshape(ops.cast(index, "int32"), (1, 1))
        tokens, beams = ops.reshape(tokens, (-1, 1)), tokens.shape[1]
        languages = ops.ones_like(tokens) if context["backward"] else None
        options = {"language_ids": languages, "position_ids": positions}
        x = self.target_embeddings(tokens, **options, training=False)
        x = ops.reshape(x, (-1, self.config.hidden_dim))  # (B K, 1, D) -> (B K, D)
        [(kind, state)] = cache.items()
        x, state = self.decoder.mix(x, step_context(context, kind, positions, index), state)
        # Scores are float32 under any dtype policy. In bfloat16, numbers near 10 have steps of
        # 1/16, so scores would tie.
        logits = self.logits(ops.cast(x, "float32"), context["kernel"])
        # (B K, V) -> (B, K, V)
        logits = ops.reshape(logits, (-1, beams, self.config.vocab_size))
        return logits, {kind: state}


class Backward:
    """Wrapper of a two-way encoder-decoder that decodes from the target to the source language."""

    def __init__(self, network: EncoderDecoder):
        self.config, self.decode_step = network.config, network.decode_step
        self.init_decode = functools.partial(network.init_decode, backward=True)


def first_stage_variables(network: keras.Model) -> list[keras.Variable]:
    """Returns the variables to train first after adding a new encoder to a pre-trained model.

    These are the new `source_encoder`, the position embeddings of encoder and decoder, and the
    query, key and value projection in the first layer of the pre-trained encoder.

    References: Lewis et al. 2020 (BART), section 3.4.
    """
    variables = list(network.source_encoder.trainable_variables)
    for embeddings in (network.source_embeddings, network.target_embeddings):
        if embeddings.position_layer:
            variables += embeddings.position_layer.trainable_variables
    first_layer = network.encoder.blocks[0].trainable_variables
    return variables + [v for v in first_layer if spec_of(v).axes[-1:] == ("heads",)]
