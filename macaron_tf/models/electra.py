"""ELECTRA's pair: a small generator, and the encoder that detects the tokens it replaced."""

import dataclasses

from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models.base import Model
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.pretraining import PretrainingEncoder

_SHARED = (
    "vocab_size",
    "embedding_width",
    "positions",
    "max_length",
    "num_segments",
    "num_languages",
)


def generator_config(config: EncoderConfig, fraction: float = 0.25) -> EncoderConfig:
    """A generator for an encoder: a fraction of its width, and its embeddings.

    Args:
        config: of the discriminator.
        fraction: of the width, the inner width and the number of heads; the paper's are 1/4 for
            small and large models and 1/3 for base.

    References: Clark et al. 2020 (ELECTRA), section 3.2 and table 6.
    """
    return dataclasses.replace(
        config,
        hidden_dim=round(config.hidden_dim * fraction),
        feed_forward_dim=round(config.feed_forward_dim * fraction),
        num_heads=max(1, round(config.num_heads * fraction)),
        embedding_dim=config.embedding_width,
    )


class GeneratorDiscriminator(Model):
    """A masked language model whose guesses an encoder learns to tell from the real tokens.

    The two share their embeddings, positions, segments and LayerNorm included; each has a matrix
    that brings these to its width. After training only `encoder`, the discriminator's, is of use.

    Args:
        config: of the discriminator.

    Call arguments: a dict of the inputs of both encoders, all `(B, L)`, and optionally
    `masked_positions (B, P)`. Returns a dict: `masked_language`, the generator's logits
    `(B, P, V)` (`(B, L, V)` without positions), and `replaced_token (B, L)`, logits.

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    def __init__(self, config: EncoderConfig, generator_config: EncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        for field in _SHARED:
            mine, theirs = getattr(config, field), getattr(generator_config, field)
            if mine != theirs:
                raise ValueError(
                    f"the discriminator has {field}={mine!r} and the generator {theirs!r}: they "
                    "share their embeddings, so give both the same"
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
        """The discriminator's logits of tokens having been replaced: inputs to `(B, L)`."""
        return self.replaced_token(self.encoder(inputs, training=training))
