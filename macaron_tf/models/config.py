"""The frozen description of an encoder-decoder."""

from dataclasses import dataclass

from macaron_tf.checks import check_choice, check_count, check_fraction
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.layers.positions import SINUSOID_LAYOUTS
from macaron_tf.layers.residual import NORM_PLACEMENTS


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Shapes and dropouts of an encoder-decoder.

    Attributes:
        vocab_size: V, of the one joint vocabulary.
        hidden_dim: D. feed_forward_dim: F of a whole layer (a Macaron layer halves it).
        num_heads: H. num_encoder_layers, num_decoder_layers: depth.
        block: `"macaron"` or `"transformer"`.
        dropout: on embeddings and sub-layer outputs, 0 to 1; attention_dropout: on attention
            weights; activation_dropout: on inner activations.
        activation: of the feed-forwards.
        norm: `"pre"` (each stack then ends in a LayerNorm) or `"post"`.
        epsilon: of the LayerNorms.
        position_layout: of the sinusoids, `"interleaved"` or `"concatenated"`.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    vocab_size: int
    hidden_dim: int
    feed_forward_dim: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    block: str = "macaron"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    activation: str = "relu"
    norm: str = "pre"
    epsilon: float = 1e-5
    position_layout: str = "interleaved"

    def __post_init__(self):
        for name in (
            "vocab_size",
            "hidden_dim",
            "feed_forward_dim",
            "num_heads",
            "num_encoder_layers",
            "num_decoder_layers",
        ):
            check_count(name, getattr(self, name))
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            check_fraction(name, getattr(self, name))
        if type(self.epsilon) is not float or not 0.0 < self.epsilon < 1.0:
            raise ValueError(f"epsilon={self.epsilon!r} must be a number between 0 and 1")
        if self.hidden_dim % self.num_heads or self.hidden_dim % 2:
            raise ValueError(
                f"hidden_dim={self.hidden_dim} must be even and a multiple of "
                f"num_heads={self.num_heads}"
            )
        check_choice("block", self.block, tuple(BLOCKS))
        check_choice("norm", self.norm, NORM_PLACEMENTS)
        check_choice("position_layout", self.position_layout, SINUSOID_LAYOUTS)
