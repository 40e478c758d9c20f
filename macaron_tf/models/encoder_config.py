"""The frozen description of an encoder."""

from dataclasses import dataclass

from macaron_tf.checks import check_choice, check_count, check_divisible, check_fraction
from macaron_tf.layers.activations import activation
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.layers.encoder_embeddings import POSITIONS
from macaron_tf.layers.residual import NORM_PLACEMENTS
from macaron_tf.layers.swish_rnn import GATES
from macaron_tf.models.stack import RELATIVE_BIASES


@dataclass(frozen=True)
class EncoderConfig:
    """Shapes, parts and dropouts of a BERT-style encoder; the defaults are BERT's.

    Attributes:
        vocab_size: V. hidden_dim: D. num_heads: H. num_layers: depth.
        feed_forward_dim: F of a whole layer; a Macaron layer halves it, a SwishRNN takes two
            thirds of it (see `SwishRNNBlock`).
        block: `"transformer"`, `"macaron"` or `"swish_rnn"`.
        rnn_step_sizes: k of the recurrences, layer by layer in turn: (1,), (2,) or (1, 2, 4).
        rnn_gate: of the recurrences.
        positions: `"learned"`, `"sinusoidal"` or `"none"`.
        relative_bias: T5's, `"none"`, `"shared"` or `"per_layer"`.
        max_length: greatest L, of learned positions.
        num_segments: 0 for no segment embeddings.
        dropout: on embeddings and sub-layer outputs, 0 to 1; attention_dropout: on attention
            weights; activation_dropout: on inner activations.
        activation: of feed-forwards and of the masked language head.
        norm: `"post"`, or `"pre"` with a LayerNorm at the end.
        epsilon: of the LayerNorms.
        affine: whether the encoder's LayerNorms have a scale and an offset; the masked language
            head's always has.
        initializer_range: standard deviation of all matrices, cut off at two of them.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    vocab_size: int
    hidden_dim: int
    feed_forward_dim: int
    num_heads: int
    num_layers: int
    block: str = "transformer"
    rnn_step_sizes: tuple[int, ...] = (1,)
    rnn_gate: str = "gelu"
    positions: str = "learned"
    relative_bias: str = "none"
    max_length: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    activation: str = "gelu"
    norm: str = "post"
    epsilon: float = 1e-12
    affine: bool = True
    initializer_range: float = 0.02

    def __post_init__(self):
        for name in (
            "vocab_size",
            "hidden_dim",
            "feed_forward_dim",
            "num_heads",
            "num_layers",
            "max_length",
        ):
            check_count(name, getattr(self, name))
        check_count("num_segments", self.num_segments, least=0)
        # JSON and the command line give lists.
        steps = self.rnn_step_sizes
        steps = tuple(steps) if isinstance(steps, list | tuple) else (steps,)
        object.__setattr__(self, "rnn_step_sizes", steps)
        if not self.rnn_step_sizes:
            raise ValueError("rnn_step_sizes is empty: give one or more, such as (1, 2, 4)")
        for step_size in self.rnn_step_sizes:
            check_count("rnn_step_sizes", step_size)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            check_fraction(name, getattr(self, name))
        for name in ("epsilon", "initializer_range"):
            value = getattr(self, name)
            if type(value) is not float or not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value!r} must be a number between 0 and 1")
        if type(self.affine) is not bool:
            raise ValueError(f"affine={self.affine!r} must be True or False")
        check_divisible("hidden_dim", self.hidden_dim, "num_heads", self.num_heads)
        activation(self.activation)
        check_choice("block", self.block, tuple(BLOCKS))
        check_choice("rnn_gate", self.rnn_gate, GATES)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("relative_bias", self.relative_bias, RELATIVE_BIASES)
        check_choice("norm", self.norm, NORM_PLACEMENTS)
