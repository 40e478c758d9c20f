"""The frozen description of an encoder-decoder."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import keras

from macaron_tf.checks import as_tuple, check_choice, check_count, check_divisible, check_fraction
from macaron_tf.kernels import GATES
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.layers.dense import activation
from macaron_tf.layers.embeddings import POSITIONS
from macaron_tf.layers.norms import NORM_TYPES
from macaron_tf.layers.positions import SINUSOID_LAYOUTS
from macaron_tf.layers.residual import NORM_PLACEMENTS
from macaron_tf.models.stack import RELATIVE_BIASES, SHARING

# Fields of encoders and encoder-decoders alike that their layers' weights depend on.
SHAPE = (
    "hidden_dim",
    "feed_forward_dim",
    "num_heads",
    "block",
    "rnn_step_sizes",
    "rnn_gate",
    "positions",
    "max_length",
    "relative_bias",
    "activation",
    "norm",
    "epsilon",
    "norm_type",
    "embedding_norm",
    "use_bias",
    "gated",
    "head_dim",
    "scaled",
)
# Fields that no weight depends on.
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")

# Options that a block has besides those of all blocks, by the names of a configuration's fields.
_OWN = {
    "gmlp": ("max_length", "toeplitz"),
    "amlp": ("max_length", "toeplitz", "tiny_attention_dim"),
}


class LayerChoices:
    """Base of the configurations whose fields say what the layers are.

    Attributes:
        block: name of the layers' block, or several, layer by layer in turn.
        rnn_step_sizes: k of the recurrences, layer by layer in turn. rnn_gate: their gate.
    """

    block: str | tuple[str, ...]
    rnn_step_sizes: tuple[int, ...]
    rnn_gate: str

    def check_layers(self, known: tuple[str, ...]) -> None:
        """Checks those fields; lists, as JSON and the command line give them, become tuples.

        Args:
            known: the blocks that there may be.

        Raises:
            ValueError: a field is out of its range; the message names it.
        """
        steps = as_tuple(self.rnn_step_sizes)
        object.__setattr__(self, "rnn_step_sizes", steps)
        if isinstance(self.block, list):
            object.__setattr__(self, "block", tuple(self.block))
        if not steps:
            raise ValueError("rnn_step_sizes is empty: give one or more, such as (1, 2, 4)")
        for step_size in steps:
            check_count("rnn_step_sizes", step_size)
        if not self.blocks:
            raise ValueError("block is empty: give a name, or several for the layers in turn")
        for block in self.blocks:
            check_choice("block", block, known)
        check_choice("rnn_gate", self.rnn_gate, GATES)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, layer by layer in turn."""
        return as_tuple(self.block)

    def layer(self, number: int) -> dict[str, Any]:
        """The block of layer `number` and its own options, as `Stack` takes them."""
        block = self.blocks[number % len(self.blocks)]
        if block == "swish_rnn":
            step_size = self.rnn_step_sizes[number % len(self.rnn_step_sizes)]
            return {"block": block, "rnn_step_size": step_size, "rnn_gate": self.rnn_gate}
        return {"block": block, **self.options(*_OWN.get(block, ()))}

    def options(self, *names: str) -> dict[str, Any]:
        """Fields by name."""
        return {name: getattr(self, name) for name in names}


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


# Those that decode token by token.
SEQUENCE_BLOCKS = ("transformer", "macaron", "swish_rnn")
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
        self.check_layers(SEQUENCE_BLOCKS)
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


def differing_fields(config: Any, base: Any) -> dict[str, Any]:
    """The fields of a configuration whose values are not those of another one of its class."""
    names = (field.name for field in dataclasses.fields(config))
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(base, name)}


class ConfiguredModel(keras.Model):
    """A Keras model with an attribute `config`, saved and made again with it.

    Attributes:
        config_class: of `config`.
    """

    config_class: ClassVar[type] = EncoderConfig

    def get_config(self):
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config: dict[str, Any]):
        config = dict(config)
        return cls(cls.config_class(**config.pop("config")), **config)
