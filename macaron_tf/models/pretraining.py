"""Encoders with pre-training heads, and ELECTRA's generator and discriminator."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from keras import ops

from macaron_tf.layers import language_heads
from macaron_tf.layers.embeddings import EncoderEmbeddings
from macaron_tf.layers.heads import ClassificationHead, Pooler
from macaron_tf.models.base import ENCODER_INPUTS, Network, encoder_inputs
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder


class PretrainingEncoder(Network):
    """Encoder with pre-training heads: masked tokens, sentence pairs, and span boundaries.

    Args:
        config: configuration of the encoder.
        sentence_pair: whether to add a pooler and a head with two classes. Class 0 means that the
            second segment follows the first segment in the text. Class 1 means that the second
            segment comes from another text, or that the segments are swapped.
        head_options: options of the masked language head that differ from the encoder's options:
            `activation`, `epsilon`, `norm_type` and `transform`.
        span_boundary: whether to add the head that predicts masked spans from their boundaries.
        embeddings: embeddings shared with another encoder. `None` means new embeddings.
        pooler, replaced_token: whether to keep a released encoder's pooler, or the head of an
            ELECTRA discriminator, which a call does not compute.

    A call takes a dict with the encoder's inputs `(B, L)`. The input `masked_positions (B, P)` is
    optional. The inputs `left_boundaries`, `right_boundaries` and `span_positions`, all `(B, P)`,
    are optional too, but must be passed together.

    A call returns a dict with these outputs:

        masked_language  logits `(B, P, V)` at masked positions, or `(B, L, V)` at all positions
        sentence_pair    logits `(B, 2)`, with the sentence-pair head
        span_boundary    logits `(B, P, V)`, with the span-boundary head and its inputs

    References: Devlin et al. 2018 (BERT), section 3.1; Lan et al. 2020 (ALBERT); Joshi et al. 2020
    (SpanBERT).
    """

    shared = ("embeddings",)
    input_names: ClassVar = {
        **ENCODER_INPUTS,
        **dict.fromkeys(("masked_positions", "span_positions"), ()),
        **dict.fromkeys(("left_boundaries", "right_boundaries"), ()),
    }

    def __init__(
        self,
        config: EncoderConfig,
        sentence_pair: bool = False,
        head_options: Mapping[str, Any] | None = None,
        span_boundary: bool = False,
        embeddings: EncoderEmbeddings | None = None,
        pooler: bool = False,
        replaced_token: bool = False,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.head_options = dict(head_options or {})
        self.encoder = Encoder(config, embeddings)
        options = config.options("vocab_size", "activation", "epsilon", "initializer_range")
        options["norm_type"] = config.outer_norm_type
        self.masked_language = language_heads.MaskedLanguageHead(
            **{**options, **self.head_options}, name="masked_language"
        )
        self.pooler = self.sentence_pair = self.span_boundary = self.replaced_token = None
        pair_options = config.options("initializer_range")
        if sentence_pair or pooler:
            self.pooler = Pooler(**pair_options, name="pooler")
        if sentence_pair:
            self.sentence_pair = ClassificationHead(2, **pair_options, name="sentence_pair")
        if replaced_token:
            replaced = config.options("activation", "initializer_range")
            self.replaced_token = language_heads.ReplacedTokenHead(
                **replaced, name="replaced_token"
            )
        if span_boundary:
            self.span_boundary = language_heads.SpanBoundaryHead(**options, name="span_boundary")

    def build(self, input_shape=None):
        vector_shape = (None, self.config.hidden_dim)
        table_shape = (self.config.vocab_size, self.config.embedding_width)
        self.encoder.build()
        self.masked_language.build(vector_shape, table_shape)
        for head in filter(None, (self.pooler, self.sentence_pair, self.replaced_token)):
            head.build((None, None, self.config.hidden_dim))
        if self.span_boundary:
            self.span_boundary.build(vector_shape, vector_shape, (None,), table_shape)

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)

        def hidden_at(name):
            # (B, L, D) at (B, P, 1) -> (B, P, D)
            return ops.take_along_axis(hidden, inputs[name][..., None], axis=1)

        masked = hidden_at("masked_positions") if "masked_positions" in inputs else hidden
        outputs = {"masked_language": self.masked_logits(masked)}
        if self.sentence_pair:
            outputs["sentence_pair"] = self.pair_logits(hidden, training=training)
        if self.span_boundary and "span_positions" in inputs:
            sides = hidden_at("left_boundaries"), hidden_at("right_boundaries")
            outputs["span_boundary"] = self.span_boundary_logits(*sides, inputs["span_positions"])
        return outputs

    def masked_logits(self, hidden):
        """Computes the logits over the vocabulary: `(..., D) -> (..., V)`."""
        table = self.encoder.embeddings.tokens.matrix(self.compute_dtype)
        return self.masked_language(hidden, table)

    def span_boundary_logits(self, left, right, positions):
        """Computes the logits `(..., V)` of masked spans' tokens (see `SpanBoundaryHead`)."""
        table = self.encoder.embeddings.tokens.matrix(self.compute_dtype)
        return self.span_boundary(left, right, positions, table)

    def pair_logits(self, hidden, training=None):
        """Computes the logits of sentence-pair classes (see the class): `(B, L, D) -> (B, 2)`."""
        return self.sentence_pair(self.pooler(hidden), training=training)


_SHARED_FIELDS = (
    *("vocab_size", "embedding_dim", "positions"),
    *("max_length", "num_segments", "num_languages"),
)


def generator_config(config: EncoderConfig, fraction: float = 0.25) -> EncoderConfig:
    """Returns the configuration of an ELECTRA generator for a discriminator.

    It has the discriminator's embeddings and a `fraction` of its widths and heads: 1/4 for small
    and large models in the paper, and 1/3 for base models.

    References: Clark et al. 2020 (ELECTRA), section 3.2 and table 6.
    """
    heads = max(1, round(config.num_heads * fraction))
    return dataclasses.replace(
        config,
        hidden_dim=round(config.hidden_dim * fraction),
        feed_forward_dim=round(config.feed_forward_dim * fraction),
        num_heads=heads,
        num_kv_heads=config.num_kv_heads and math.gcd(heads, config.num_kv_heads),
        embedding_dim=config.embedding_width,
    )


class GeneratorDiscriminator(Network):
    """ELECTRA: a generator that replaces tokens, and a discriminator that detects replaced tokens.

    The generator is a masked language model (see the function `generator_config`). Both networks
    share embeddings, including positions, segments and LayerNorm. If the width of a network differs
    from the embedding width, a matrix projects the embeddings to the width of the network. After
    training, only the discriminator in the attribute `encoder` is used.

    A call takes a dict with encoder inputs `(B, L)`, which generator and discriminator both read,
    and optionally `masked_positions (B, P)`. A call returns a dict with these outputs:

        masked_language  logits of the generator, `(B, P, V)`, or `(B, L, V)` at all positions
        replaced_token   logits of the discriminator, `(B, L)`

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    input_names = PretrainingEncoder.input_names

    def __init__(self, config: EncoderConfig, generator_config: EncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        shared, generated = (
            dataclasses.replace(each, embedding_dim=each.embedding_width).options(*_SHARED_FIELDS)
            for each in (config, generator_config)
        )
        for field, value in shared.items():
            if value != generated[field]:
                raise ValueError(f"{field}={value!r} must be the generator's {generated[field]!r}")
        self.encoder = Encoder(config)
        options = {"embeddings": self.encoder.embeddings, "name": "generator"}
        self.generator = PretrainingEncoder(generator_config, **options)
        options = config.options("activation", "initializer_range")
        self.replaced_token = language_heads.ReplacedTokenHead(**options, name="replaced_token")

    def call(self, inputs, training=None):
        inputs = self._named_inputs(inputs)
        outputs = self.generator(inputs, training=training)
        return {**outputs, "replaced_token": self.replaced_logits(inputs, training=training)}

    def replaced_logits(self, inputs, training=None):
        """Computes the discriminator's logits `(B, L)`, which are high at replaced tokens."""
        return self.replaced_token(self.encoder(encoder_inputs(inputs), training=training))
