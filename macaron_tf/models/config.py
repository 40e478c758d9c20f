"""The frozen description of an encoder-decoder."""

from dataclasses import dataclass

from macaron_tf.checks import check_choice, check_count, check_fraction
from macaron_tf.layers.activations import activation
from macaron_tf.layers.encoder_embeddings import POSITIONS
from macaron_tf.layers.layer_norm import NORM_TYPES
from macaron_tf.layers.positions import SINUSOID_LAYOUTS
from macaron_tf.layers.residual import NORM_PLACEMENTS
from macaron_tf.models.layer_choices import LayerChoices
from macaron_tf.models.stack import RELATIVE_BIASES

# Those that decode token by token.
BLOCKS = ("transformer", "macaron", "swish_rnn")
INITIALIZERS = ("glorot_uniform", "lecun_normal")


@dataclass(frozen=True)
class EncoderDecoderConfig(LayerChoices):
    """Shapes, parts and dropouts of an encoder-decoder; the defaults are a translator's.

    Attributes:
        vocab_size: V, of the one joint vocabulary.
        hidden_dim: D. feed_forward_dim: F of a whole layer (a Macaron layer halves it, a SwishRNN
            takes two thirds of it).
        num_heads: H. num_encoder_layers, num_decoder_layers: depth.
        block: `"macaron"`, `"transformer"` or `"swish_rnn"`, or several, layer by layer in turn.
        dropout: on embeddings and sub-layer outputs, 0 to 1; attention_dropout: on attention
            weights; activation_dropout: on inner activations.
        activation: of the feed-forwards.
        norm: `"pre"` (each stack then ends in a norm) or `"post"`.
        epsilon: of the norms.
        position_layout: of the sinusoids, `"interleaved"` or `"concatenated"`.
        positions: `"sinusoidal"`, `"learned"` (the source's and the target's have a table each) or
            `"none"`. max_length: greatest S and T of learned ones.
        relative_bias: T5's on both stacks' attention to the sequence itself, `"none"`, `"shared"`
            by a stack's layers or `"per_layer"`.
        norm_type: `"layer"` or `"rms"`. embedding_norm: whether a LayerNorm follows the
            embeddings (BART's).
        use_bias: whether attention and feed-forwards have biases. gated: whether feed-forwards
            are, see `FeedForward`.
        head_dim: d of an attention head; None = D / H. scaled: whether attention scores are
            divided by sqrt(d).
        embedding_scale: whether embeddings are multiplied by sqrt(D).
        tied: whether the embeddings also score the target; if not, a matrix of its own does.
        scaled_logits: whether the output is divided by sqrt(D) before that (T5's, tied).
        logits_bias: whether every token of the vocabulary has a bias.
        rnn_step_sizes: k of the recurrences, layer by layer in turn. rnn_gate: their gate.
        initializer: of the matrices, `"glorot_uniform"` or `"lecun_normal"` (T5's). The embeddings
            start so wide that, scaled or not, they are of unit scale where they are added up.
        initializer_range: standard deviation of all matrices and tables, cut off at two of them
            (BART's); None = as `initializer` says.
        language_embeddings: whether a vector is added to every token of the source, and another
            one to those of the target (XLM's languages).
        num_source_layers: depth of an encoder of its own that reads the source in front of the
            encoder, whose token embeddings it replaces (BART's translation); 0 = none.
        source_vocab_size: rows of that encoder's table; None = V.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    vocab_size: int
    hidden_dim: int
    feed_forward_dim: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    block: str | tuple[str, ...] = "macaron"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    activation: str = "relu"
    norm: str = "pre"
    epsilon: float = 1e-5
    position_layout: str = "interleaved"
    positions: str = "sinusoidal"
    max_length: int = 1024
    relative_bias: str = "none"
    norm_type: str = "layer"
    embedding_norm: bool = False
    use_bias: bool = True
    gated: bool = False
    head_dim: int | None = None
    scaled: bool = True
    embedding_scale: bool = True
    tied: bool = True
    scaled_logits: bool = False
    logits_bias: bool = False
    rnn_step_sizes: tuple[int, ...] = (1,)
    rnn_gate: str = "gelu"
    initializer: str = "glorot_uniform"
    initializer_range: float | None = None
    language_embeddings: bool = False
    num_source_layers: int = 0
    source_vocab_size: int | None = None

    def __post_init__(self):
        for name in (
            "vocab_size",
            "hidden_dim",
            "feed_forward_dim",
            "num_heads",
            "num_encoder_layers",
            "num_decoder_layers",
            "max_length",
        ):
            check_count(name, getattr(self, name))
        for name in ("head_dim", "source_vocab_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("num_source_layers", self.num_source_layers, least=0)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            check_fraction(name, getattr(self, name))
        for name in ("epsilon", "initializer_range"):
            value = getattr(self, name)
            if name == "initializer_range" and value is None:
                continue
            if type(value) is not float or not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value!r} must be a number between 0 and 1")
        for name, kind in type(self).__annotations__.items():
            if kind is bool and type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.hidden_dim % 2 or (self.head_dim is None and self.hidden_dim % self.num_heads):
            raise ValueError(
                f"hidden_dim={self.hidden_dim} must be even and a multiple of "
                f"num_heads={self.num_heads}"
            )
        self.check_layers(BLOCKS)
        activation(self.activation)
        check_choice("norm", self.norm, NORM_PLACEMENTS)
        check_choice("norm_type", self.norm_type, NORM_TYPES)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("position_layout", self.position_layout, SINUSOID_LAYOUTS)
        check_choice("relative_bias", self.relative_bias, RELATIVE_BIASES)
        check_choice("initializer", self.initializer, INITIALIZERS)

    @property
    def longest(self) -> int | None:
        """Greatest S and T; None = any."""
        return self.max_length if self.positions == "learned" else None
