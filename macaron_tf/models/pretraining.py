"""Encoders with their pre-training heads, and ELECTRA's generator and discriminator."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from keras import ops

from macaron_tf.layers.embeddings import EncoderEmbeddings
from macaron_tf.layers.heads import ClassificationHead, Pooler
from macaron_tf.layers.language_heads import (
    MaskedLanguageHead,
    ReplacedTokenHead,
    SpanBoundaryHead,
)
from macaron_tf.models.base import ENCODER_INPUTS, Model, encoder_inputs
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder


class PretrainingEncoder(Model):
    """An encoder with pre-training heads: masked language, optionally pairs and span boundaries.

    Args:
        sentence_pair: whether to add a pooler and a head with two classes. 0: the two segments
            follow each other as in the text; 1: the second comes from elsewhere, or the two are
            swapped.
        head_options: `activation`, `epsilon`, `norm_type` and `transform` of the masked language
            head, where they differ from the encoder's.
        span_boundary: whether to add the head that predicts masked spans from their boundaries.
        embeddings: embeddings shared with another encoder; None: it makes its own.

    Call arguments: a dict of the encoder's inputs, all `(B, L)`, and optionally
    `masked_positions (B, P)`, and with these `left_boundaries`, `right_boundaries` and
    `span_positions (B, P)`. Returns a dict: `masked_language`, logits `(B, P, V)` at the masked
    positions, or `(B, L, V)` at all positions if none are given; with a sentence-pair head
    `sentence_pair (B, 2)`; with boundaries `span_boundary (B, P, V)`.

    References: Devlin et al. 2018 (BERT), section 3.1; Lan et al. 2020 (ALBERT); Joshi et al. 2020
    (SpanBERT).
    """

    input_names: ClassVar = {
        **ENCODER_INPUTS,
        **dict.fromkeys(
            ("masked_positions", "left_boundaries", "right_boundaries", "span_positions"), ()
        ),
    }

    def __init__(
        self,
        config: EncoderConfig,
        sentence_pair: bool = False,
        head_options: Mapping[str, Any] | None = None,
        span_boundary: bool = False,
        embeddings: EncoderEmbeddings | None = None,
        **kwargs,
    ):
        super().__init__(config, **kwargs)
        self.head_options = dict(head_options or {})
        self.encoder = Encoder(config, embeddings)
        own = {
            "activation": config.activation,
            "epsilon": config.epsilon,
            "initializer_range": config.initializer_range,
            "norm_type": config.outer_norm_type,
        }
        self.masked_language = MaskedLanguageHead(
            config.vocab_size, **{**own, **self.head_options}, name="masked_language"
        )
        self.pooler = self.sentence_pair = self.span_boundary = None
        if sentence_pair:
            self.pooler = Pooler(config.initializer_range, name="pooler")
            self.sentence_pair = ClassificationHead(
                2, initializer_range=config.initializer_range, name="sentence_pair"
            )
        if span_boundary:
            self.span_boundary = SpanBoundaryHead(config.vocab_size, **own, name="span_boundary")

    def build(self, input_shape=None):
        one = (None, self.config.hidden_dim)
        table = (self.config.vocab_size, self.config.embedding_width)
        self.encoder.build()
        self.masked_language.build(one, table)
        if self.sentence_pair:
            self.pooler.build((None, None, self.config.hidden_dim))
            self.sentence_pair.build(one)
        if self.span_boundary:
            self.span_boundary.build(one, one, (None,), table)

    def call(self, inputs, training=None):
        hidden = self.hidden_states(inputs, training=training)  # (B, L, D)

        def at(name):
            # (B, L, D) at (B, P, 1) -> (B, P, D)
            return ops.take_along_axis(hidden, inputs[name][..., None], axis=1)

        masked = at("masked_positions") if "masked_positions" in inputs else hidden
        outputs = {"masked_language": self.masked_logits(masked)}
        if self.sentence_pair:
            outputs["sentence_pair"] = self.pair_logits(hidden, training=training)
        if self.span_boundary and "span_positions" in inputs:
            outputs["span_boundary"] = self.span_boundary_logits(
                at("left_boundaries"), at("right_boundaries"), inputs["span_positions"]
            )
        return outputs

    def masked_logits(self, hidden):
        """Scores of all tokens of the vocabulary: `(..., D) -> (..., V)`."""
        return self.masked_language(hidden, self._table())

    def span_boundary_logits(self, left, right, positions):
        """Scores of all tokens, from boundaries `(..., D)` and `positions (...,)` in the span."""
        if not self.span_boundary:
            raise ValueError("span_boundary=False: make the model with span_boundary=True")
        return self.span_boundary(left, right, positions, self._table())

    def pair_logits(self, hidden, training=None):
        """Scores of the classes 0 (as in the text) and 1: `(B, L, D) -> (B, 2)`."""
        if not self.sentence_pair:
            raise ValueError("sentence_pair=False: make the model with sentence_pair=True")
        return self.sentence_pair(self.pooler(hidden), training=training)

    def _table(self):
        """The token embeddings `(V, E)`."""
        return self.encoder.embeddings.tokens.matrix(self.compute_dtype)

    def get_config(self):
        # Shared embeddings are saved by their owner, which passes them in again.
        return {**super().get_config(), "embeddings": None}


_SHARED = (
    "vocab_size",
    "embedding_width",
    "positions",
    "max_length",
    "num_segments",
    "num_languages",
)


def generator_config(config: EncoderConfig, fraction: float = 0.25) -> EncoderConfig:
    """Configuration of a generator: the discriminator's embeddings and a fraction of its width.

    Args:
        config: the discriminator's configuration.
        fraction: fraction of the width, the inner width and the number of heads. The paper has 1/4
            for small and large models and 1/3 for base.

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


class GeneratorDiscriminator(Model):
    """ELECTRA: a masked language model, and an encoder that detects the tokens it replaced.

    The two share their embeddings, including positions, segments and LayerNorm; each has a matrix
    that projects these to its width. After training, only the discriminator, `encoder`, is used.

    Args:
        config: the discriminator's configuration.
        generator_config: the generator's, see the function of that name.

    Call arguments: a dict of the inputs of both encoders, all `(B, L)`, and optionally
    `masked_positions (B, P)`. Returns a dict: `masked_language`, the generator's logits
    `(B, P, V)`, or `(B, L, V)` without positions; and `replaced_token`, logits `(B, L)`.

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    input_names = PretrainingEncoder.input_names

    def __init__(self, config: EncoderConfig, generator_config: EncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        for field in _SHARED:
            mine, theirs = getattr(config, field), getattr(generator_config, field)
            if mine != theirs:
                raise ValueError(
                    f"the discriminator has {field}={mine!r} and the generator {theirs!r}: give "
                    "both the same, because they share their embeddings"
                )
        self.encoder = Encoder(config)
        self.generator = PretrainingEncoder(
            generator_config, embeddings=self.encoder.embeddings, name="generator"
        )
        self.replaced_token = ReplacedTokenHead(
            **config.options("activation", "initializer_range"), name="replaced_token"
        )

    def call(self, inputs, training=None):
        return {
            **self.generator(inputs, training=training),
            "replaced_token": self.replaced_logits(inputs, training=training),
        }

    def replaced_logits(self, inputs, training=None):
        """The discriminator's logits that each token has been replaced, `(B, L)`."""
        return self.replaced_token(self.encoder(encoder_inputs(inputs), training=training))
