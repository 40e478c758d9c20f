"""The frozen description of an encoder."""

from dataclasses import dataclass

from macaron_tf.checks import check_choice, check_count, check_divisible, check_fraction
from macaron_tf.layers.activations import activation
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.layers.encoder_embeddings import POSITIONS
from macaron_tf.layers.layer_norm import NORM_TYPES
from macaron_tf.layers.residual import NORM_PLACEMENTS
from macaron_tf.models.layer_choices import LayerChoices
from macaron_tf.models.stack import RELATIVE_BIASES, SHARING

# Those whose tokens are mixed by attention.
RELATIVE_BLOCKS = ("transformer", "macaron", "swish_rnn")


@dataclass(frozen=True)
class EncoderConfig(LayerChoices):
    """Shapes, parts and dropouts of a BERT-style encoder; the defaults are BERT's.

    Attributes:
        vocab_size: V. hidden_dim: D. num_heads: H. num_layers: depth.
        feed_forward_dim: F of a whole layer; a Macaron layer halves it, a SwishRNN takes two
            thirds of it (see `SwishRNNBlock`).
        block: name of the layers' block, see `macaron_tf.layers.BLOCKS`, or several, layer by layer
            in turn.
        sharing: which weights all layers have in common: `"none"`, `"all"`, `"attention"` (what
            mixes tokens) or `"feed_forward"` (what mixes channels), each with its LayerNorm; of
            layers that differ in their block or step size, those that are alike (ALBERT).
        embedding_dim: E, width of the embeddings, which a matrix then brings to D; None = D.
        rnn_step_sizes: k of the recurrences, layer by layer in turn: (1,), (2,) or (1, 2, 4).
        rnn_gate: of the recurrences.
        positions: `"learned"`, `"sinusoidal"`, `"none"` or `"transformer_xl"`: no position is
            added, but attention knows distances, and segments too are compared and not added
            (`RelativeAttention`), so that it may look back into a memory.
        clamp_length: the greatest distance of `"transformer_xl"`; None = any.
        shared_position_biases: whether its u and v are the same in all layers.
        relative_bias: T5's, `"none"`, `"shared"` or `"per_layer"`.
        toeplitz: whether gated MLPs have one weight for each distance of two positions, not for
            each pair of them. tiny_attention_dim: width of the attention of `"amlp"` blocks.
        max_length: greatest L, of learned positions and of gated MLPs.
        num_segments, num_languages: 0 for no such embeddings.
        causal: no position sees a later one, as in a language model.
        dropout: on embeddings and sub-layer outputs, 0 to 1; attention_dropout: on attention
            weights; activation_dropout: on inner activations.
        activation: of feed-forwards and of the masked language head.
        norm: `"post"`, or `"pre"` with a LayerNorm at the end.
        epsilon: of the LayerNorms.
        affine: whether the encoder's LayerNorms have a scale and an offset; the masked language
            head's always has.
        norm_type: of the blocks, `"layer"` or `"rms"`; embedding_norm: whether the embeddings
            have a LayerNorm, BERT's.
        use_bias: whether attention and feed-forwards have biases. gated: whether feed-forwards
            are, see `FeedForward`.
        head_dim: d of an attention head; None = D / H. scaled: whether attention scores are
            divided by sqrt(d).
        initializer_range: standard deviation of all matrices, cut off at two of them.
        scaled_outputs: the last matrix of each sub-layer starts 1/sqrt(sub-layers) as wide, so
            that their sum does not grow with depth (GPT-2).
        output_bias: whether a language model's scores have a bias for each token.
        summary: which position a classifier reads: `"first"`, [CLS]'s, or `"last"`, where rows
            end with it (XLNet).

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    vocab_size: int
    hidden_dim: int
    feed_forward_dim: int
    num_heads: int
    num_layers: int
    block: str | tuple[str, ...] = "transformer"
    sharing: str = "none"
    embedding_dim: int | None = None
    rnn_step_sizes: tuple[int, ...] = (1,)
    rnn_gate: str = "gelu"
    positions: str = "learned"
    clamp_length: int | None = None
    shared_position_biases: bool = False
    relative_bias: str = "none"
    toeplitz: bool = True
    tiny_attention_dim: int = 64
    max_length: int = 512
    num_segments: int = 2
    num_languages: int = 0
    causal: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    activation: str = "gelu"
    norm: str = "post"
    epsilon: float = 1e-12
    affine: bool = True
    norm_type: str = "layer"
    embedding_norm: bool = True
    use_bias: bool = True
    gated: bool = False
    head_dim: int | None = None
    scaled: bool = True
    initializer_range: float = 0.02
    scaled_outputs: bool = False
    output_bias: bool = False
    summary: str = "first"

    def __post_init__(self):
        for name in (
            "vocab_size",
            "hidden_dim",
            "feed_forward_dim",
            "num_heads",
            "num_layers",
            "max_length",
            "tiny_attention_dim",
        ):
            check_count(name, getattr(self, name))
        for name in ("num_segments", "num_languages"):
            check_count(name, getattr(self, name), least=0)
        for name in ("embedding_dim", "head_dim", "clamp_length"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        self.check_layers(tuple(BLOCKS))
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            check_fraction(name, getattr(self, name))
        for name in ("epsilon", "initializer_range"):
            value = getattr(self, name)
            if type(value) is not float or not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value!r} must be a number between 0 and 1")
        for name in (
            "affine",
            "causal",
            "shared_position_biases",
            "toeplitz",
            "embedding_norm",
            "use_bias",
            "gated",
            "scaled",
            "scaled_outputs",
            "output_bias",
        ):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.head_dim is None:
            check_divisible("hidden_dim", self.hidden_dim, "num_heads", self.num_heads)
        activation(self.activation)
        check_choice("sharing", self.sharing, tuple(SHARING))
        check_choice("positions", self.positions, (*POSITIONS, "transformer_xl"))
        check_choice("relative_bias", self.relative_bias, RELATIVE_BIASES)
        check_choice("norm", self.norm, NORM_PLACEMENTS)
        check_choice("norm_type", self.norm_type, NORM_TYPES)
        check_choice("summary", self.summary, ("first", "last"))
        if self.positions == "transformer_xl":
            if self.relative_bias != "none":
                raise ValueError("positions='transformer_xl' and relative_bias exclude each other")
            without = set(self.blocks) - set(RELATIVE_BLOCKS)
            if without:
                raise ValueError(
                    f"positions='transformer_xl' needs blocks with attention, "
                    f"{', '.join(RELATIVE_BLOCKS)}, not {', '.join(sorted(without))}"
                )
        if self.norm_type == "rms" and not self.affine:
            raise ValueError("norm_type='rms' always has a scale: set affine=True")

    @property
    def longest(self) -> int | None:
        """Greatest L; None = any."""
        bound = self.positions == "learned" or {"gmlp", "amlp"} & set(self.blocks)
        return self.max_length if bound else None

    @property
    def relative(self) -> dict | None:
        """Options of the layers' `RelativeAttention`; None where they have another one."""
        if self.positions != "transformer_xl":
            return None
        return {"clamp_length": self.clamp_length, "segments": self.num_segments > 0}

    @property
    def embedding_width(self) -> int:
        """E, of the embeddings."""
        return self.embedding_dim or self.hidden_dim
