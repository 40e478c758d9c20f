"""Configurations of encoders and encoder-decoders."""

import dataclasses
import itertools
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from macaron_tf.errors import check_divisible
from macaron_tf.layers.blocks import BLOCKS, block_class
from macaron_tf.layers.config import BlockConfig
from macaron_tf.layers.embeddings import cluster_width
from macaron_tf.layers.scheme import Mix
from macaron_tf.plug_ins import is_place
from macaron_tf.settings import Count, Depth, Dropout, Natural, Settings, hints_of

Epsilon = Annotated[float, Gt(0), Lt(1)]
# Blocks that mix tokens by attention and decode token by token.
SEQUENCE_BLOCKS = ("transformer", "macaron", "swish_rnn")
BY_ATTENTION = ("rotary", "alibi")  # position encodings inside attention


@dataclasses.dataclass(frozen=True)
class Sizes(Settings):
    """Sizes that every model has. They can be given as positional arguments.

    Attributes:
        vocab_size: V, the number of token ids.
        hidden_dim: D, the width of the hidden states.
        num_heads: H, the number of attention heads.
        feed_forward_dim: F of a whole layer. Each of Macaron's two feed-forwards has half of it, a
            SwishRNN two thirds (see `SwishRNNBlock`).
    """

    vocab_size: Count
    hidden_dim: Count
    feed_forward_dim: Count
    num_heads: Count


@dataclasses.dataclass(frozen=True)
class StackConfig(BlockConfig, Sizes):
    """Fields that encoders and encoder-decoders share: options of blocks, stacks and embeddings.

    Attributes:
        block: name of the layers' block, a key of `macaron_tf.layers.BLOCKS`, or a `Block` of your
            own, `package.module:Name`. Several names are repeated over the layers in turn.
        rnn_step_sizes: step sizes k of recurrences, repeated over the layers in turn: (1,), (2,) or
            (1, 2, 4).
        attention_windows: positions that attention sees, repeated over the layers in turn; 0: all.
            Causal layers see the last ones up to their own position: (0, 256) alternates dense and
            banded layers (GPT-3). In an encoder half of them are on each side: (0, 128, 128) is
            ModernBERT's.
        positions: position encoding: `"sinusoidal"` or `"learned"`, added to embeddings; inside
            self-attention `"rotary"`, which rotates queries and keys (Llama), or `"alibi"`, by
            which scores fall with distance (Press et al. 2022); or `"none"`.
        relative_bias: T5's relative position bias in self-attention: `"none"`, `"shared"` by the
            layers of a stack, or `"per_layer"`.
        embedding_norm: whether a LayerNorm follows the embeddings (BERT, BART).
        first_norm: whether the first sub-layer of a pre-norm stack has a norm. ModernBERT has none
            there, because `embedding_norm` comes right before.
        embedding_scale: whether token embeddings are multiplied by the square root of their width.
        remat: gradient checkpointing: training recomputes the activations of each block in the
            backward pass, which takes a third more time and the memory of one block only.
    """

    known_blocks: ClassVar[tuple[str, ...]] = tuple(BLOCKS)

    feed_forward_dim: Count  # repeated to stay positional arguments
    num_heads: Count
    _: dataclasses.KW_ONLY
    block: str | tuple[str, ...] = "transformer"
    rnn_step_sizes: tuple[Count, ...] = (1,)
    attention_windows: tuple[Natural, ...] = (0,)
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "sinusoidal"
    relative_bias: Literal["none", "shared", "per_layer"] = "none"
    embedding_norm: bool = False
    first_norm: bool = True
    embedding_scale: bool = False
    remat: bool = False
    toeplitz: bool = True

    def check(self) -> None:
        super().check()
        if self.head_dim is None:
            check_divisible("hidden_dim", self.hidden_dim, "num_heads", self.num_heads)
        if self.norm == "post" and not self.first_norm:
            raise self.error("first_norm=False needs norm='pre': set it, or leave first_norm out")
        if self.positions == "rotary":
            head_dim = self.head_dim or self.hidden_dim // self.num_heads
            if (self.rotary_dim or head_dim) % 2:
                name = "rotary_dim" if self.rotary_dim else "head_dim"
                raise self.error(f"positions='rotary' rotates pairs of channels: make {name} even")
            if (self.rotary_dim or 0) > head_dim:
                raise self.error(
                    f"rotary_dim={self.rotary_dim} is more than head_dim={head_dim}: give at most "
                    "head_dim"
                )
        if self.positions in BY_ATTENTION and self.relative_bias != "none":
            raise self.error(
                f"positions={self.positions!r} and relative_bias exclude each other: set "
                "relative_bias='none'"
            )
        for name, example in (("rnn_step_sizes", (1, 2, 4)), ("attention_windows", (0, 256))):
            if not getattr(self, name):
                raise self.error(f"{name} is empty: give one or more, such as {example}")
        if not self.blocks:
            raise self.error("block is empty: give one name, or several for the layers in turn")
        for block in self.blocks:
            own = is_place(block) and block_class(block)
            if not own and block not in self.known_blocks:
                known = ", ".join(map(repr, self.known_blocks))
                raise self.error(f"block={block!r} must be one of {known}")

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, which the layers repeat in turn."""
        return self.block if isinstance(self.block, tuple) else (self.block,)

    @property
    def splittings(self) -> tuple[tuple[Mix, ...], ...]:
        """Operators of the blocks, which the layers repeat in turn."""
        return tuple(self.splitting(block_class(block).scheme) for block in self.blocks)

    def layer(self, number: int) -> tuple[str, int, int]:
        """Block name, step size of the recurrence, and attention window of layer `number`."""
        block = self.blocks[number % len(self.blocks)]
        step_size = self.rnn_step_sizes[number % len(self.rnn_step_sizes)]
        step_size = step_size if block == "swish_rnn" or is_place(block) else 1
        return block, step_size, self.attention_windows[number % len(self.attention_windows)]

    @property
    def outer_norm_type(self) -> str:
        """`norm_type` of norms after embeddings and in heads: as configured, but never `"rms"`."""
        return "layer" if self.norm_type == "rms" else self.norm_type

    @property
    def relative(self) -> bool:
        """Whether attention is Transformer-XL's, which scores distances."""
        return self.positions == "transformer_xl"

    @property
    def added_positions(self) -> str:
        """The position encoding that is added to embeddings; `"none"` if attention has its own."""
        return self.positions if self.positions in ("sinusoidal", "learned") else "none"

    @property
    def longest(self) -> int | None:
        """The greatest length of a text; None: no limit."""
        bound = any(block_class(block).fixed_length for block in self.blocks)
        return self.max_length if bound or self.positions == "learned" else None

    @property
    def without_attention(self) -> list[str]:
        """The blocks that mix tokens without attention, see `Block.attends`."""
        return sorted(block for block in set(self.blocks) if not block_class(block).attends)

    def check_room(self, room: int | None) -> None:
        """Raises a ValueError if `room` tokens are more than the model's positions; None passes."""
        if room is not None and self.longest is not None and room > self.longest:
            raise ValueError(
                f"max_length={room} is more than the {self.longest} positions of the model: give "
                f"at most {self.longest}"
            )


# For each setting that some networks ignore: what reads it. A network's layers list the settings
# that they read in `Recording.reads`.
READERS = {
    **dict.fromkeys(
        ("head_dim", "scaled", "attention_dropout", "relative_bias", "num_kv_heads"),
        "attention, of block=transformer, macaron or swish_rnn,",
    ),
    **dict.fromkeys(
        ("activation", "activation_dropout", "gated", "use_bias"),
        "a feed-forward, of block=transformer or macaron,",
    ),
    "scaled_outputs": "a block of attention or feed-forward",
    **dict.fromkeys(("rnn_gate", "rnn_step_sizes"), "block=swish_rnn"),
    "toeplitz": "block=gmlp or amlp",
    "tiny_attention_dim": "block=amlp",
    **dict.fromkeys(("clamp_length", "shared_position_biases"), "positions=transformer_xl"),
    "position_layout": "positions=sinusoidal",
    **dict.fromkeys(("rotary_base", "rotary_dim", "rotary_scaling"), "positions=rotary"),
    "local_rotary_base": "positions=rotary with attention_windows",
    "positions": "attention, of block=transformer, macaron, swish_rnn or amlp,",
    "output_bias": "a causal model without adaptive_cutoffs",
    "adaptive_divisor": "a model with adaptive_cutoffs",
    "tied": "a causal model, or one with adaptive_cutoffs,",
    "initializer": "initializer_range=None",
    "spatial_dropout": "mixer=tcn",
    "embedding_dropout": "a model over ids",
}

DROPOUTS = tuple(name for name in hints_of(StackConfig) if name.endswith("dropout"))
# Fields on which no weight depends.
FREE = (*DROPOUTS, "remat")


def shape_of(config: StackConfig) -> dict[str, Any]:
    """The shared fields that determine the weights of layers and embeddings, by name."""
    return config.options(*(n for n in hints_of(StackConfig) if n not in (*DROPOUTS, "vocab_size")))


@dataclasses.dataclass(frozen=True)
class EncoderConfig(StackConfig):
    """Configuration of a BERT-style encoder; the defaults are BERT's.

    Attributes:
        num_layers: number of layers.
        activation: activation of feed-forwards and of the masked language head.
        positions: position encoding, see `StackConfig`; or `"transformer_xl"`, relative attention,
            which scores distances and may have a memory. No positions are added then, and attention
            also compares segments instead of adding them (`RelativeAttention`).
        affine: whether LayerNorms have a scale and an offset; that of the masked language head
            always has both.
        sharing: weights that all layers share (ALBERT), each with its LayerNorm: `"none"`, `"all"`,
            `"attention"` (the token mixers) or `"feed_forward"` (the channel mixers). Layers share
            only if they have the same block, step size and window.
        embedding_dim: E, the width of the embeddings, which a matrix projects to D; None: D.
        shared_position_biases: whether u and v of relative attention are the same in all layers.
        num_segments, num_languages: rows of the segment and language embeddings; 0: none.
        causal: whether no position sees later ones, as in a language model.
        initializer_range: standard deviation of all matrices, truncated at two of them.
        scaled_outputs: whether the last matrix of each sub-layer starts with 1/sqrt(sub-layers) of
            the standard deviation, so that their sum does not grow with depth (GPT-2).
        output_bias: whether a language model's scores have a bias per token.
        adaptive_cutoffs, adaptive_divisor: options of a language model's `AdaptiveSoftmax`; no
            cutoffs: a softmax over the embedding table.
        tied: whether a language model scores tokens by their embeddings or by a table of its own.
            With an adaptive softmax, tied embeddings are narrower for rare tokens
            (`AdaptiveEmbedding`).
        summary: position that a classifier reads: `"first"`, that of [CLS], or `"last"`, for rows
            that end with it (XLNet).
    """

    num_layers: Depth
    _: dataclasses.KW_ONLY
    dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    activation: str = "gelu"
    norm: Literal["pre", "post"] = "post"
    epsilon: Epsilon = 1e-12
    positions: Literal["learned", "sinusoidal", "rotary", "alibi", "none", "transformer_xl"] = (
        "learned"
    )
    embedding_norm: bool = True
    sharing: Literal["none", "all", "attention", "feed_forward"] = "none"
    embedding_dim: Count | None = None
    shared_position_biases: bool = False
    num_segments: Natural = 2
    num_languages: Natural = 0
    causal: bool = False
    initializer_range: Epsilon = 0.02
    scaled_outputs: bool = False
    output_bias: bool = False
    adaptive_cutoffs: tuple[Count, ...] = ()
    adaptive_divisor: Count = 1
    tied: bool = True
    summary: Literal["first", "last"] = "first"

    def check(self) -> None:
        super().check()
        if any(mix.operator == "memory" for mix in self.splitting()):
            raise self.error(
                f"scheme={self.scheme!r}: an encoder has no memory to attend: leave 'memory' out"
            )
        branches = any(mix.beside for scheme in self.splittings for mix in scheme)
        if branches and self.sharing in ("attention", "feed_forward"):
            raise self.error(
                f"sharing={self.sharing!r}: parallel branches have one norm, which layers cannot "
                "share for one branch only: set 'all' or 'none'"
            )
        if self.adaptive_cutoffs:
            # The layers check the size of the vocabulary, which may not be known here.
            if any(b <= a for a, b in itertools.pairwise(self.adaptive_cutoffs)):
                raise self.error(f"adaptive_cutoffs={self.adaptive_cutoffs} must ascend: sort them")
            try:
                cluster_width(self.hidden_dim, self.adaptive_divisor, len(self.adaptive_cutoffs))
            except ValueError as error:
                raise self.error(f"adaptive_{error}") from None
            if self.tied and self.embedding_width != self.hidden_dim:
                raise self.error(
                    f"embedding_dim={self.embedding_dim}: embeddings tied to an adaptive softmax "
                    "are as wide as the model: leave embedding_dim out, or set tied=False"
                )
        if any(self.attention_windows):
            given = f"attention_windows={self.attention_windows}"
            if self.relative or self.relative_bias != "none":
                raise self.error(
                    f"{given}: relative positions attend the whole text: set positions='learned' "
                    "and relative_bias='none'"
                )
            if self.without_attention:
                raise self.error(
                    f"{given}: block={self.without_attention[0]!r} has no attention: leave "
                    "attention_windows out"
                )
        if self.relative:
            if self.relative_bias != "none":
                raise self.error(
                    "positions='transformer_xl' and relative_bias exclude each other: set "
                    "relative_bias='none'"
                )
            if self.without_attention:
                raise self.error(
                    f"positions='transformer_xl' needs blocks with attention, "
                    f"{', '.join(SEQUENCE_BLOCKS)}, not {', '.join(self.without_attention)}"
                )

    @property
    def adaptive_embeddings(self) -> bool:
        """Whether embeddings are narrower for rare tokens."""
        return bool(self.adaptive_cutoffs) and self.tied and self.adaptive_divisor > 1

    @property
    def embedding_width(self) -> int:
        """E, the width of the embeddings."""
        return self.embedding_dim or self.hidden_dim


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(StackConfig):
    """Configuration of an encoder-decoder; the defaults are those of a translation model.

    Attributes:
        vocab_size: V, the size of the joint vocabulary.
        num_encoder_layers, num_decoder_layers: numbers of layers.
        block: `"macaron"`, `"transformer"` or `"swish_rnn"`, or a `Block` of your own that decodes
            token by token, `package.module:Name`. Several names are repeated over the layers in
            turn.
        max_length: greatest S and T of learned positions; source and target have a table each.
        position_layout: order of sines and cosines, see `SinusoidalPositions`.
        tied: whether the embeddings also score the target tokens; if not, a matrix of its own does.
        scaled_logits: whether the decoder's output is divided by sqrt(D) before scoring (T5 with
            tied embeddings).
        logits_bias: whether the scores have a bias per token.
        initializer: initializer of the matrices; T5's is `"lecun_normal"`. Embeddings start at unit
            scale, after `embedding_scale` if that is set.
        initializer_range: standard deviation of all matrices and tables, truncated at two of them
            (BART); None: `initializer` decides.
        language_embeddings: whether source tokens get one vector and target tokens another (XLM's
            language embeddings).
        two_way: whether the model translates in both directions: each side has vectors for its own
            language and for the other one.
        num_source_layers: number of layers of an additional encoder that reads the source and whose
            output replaces the token embeddings (BART's translation); 0: none.
        source_vocab_size: vocabulary size of that encoder; None: V.
    """

    known_blocks: ClassVar[tuple[str, ...]] = SEQUENCE_BLOCKS
    causal: ClassVar[bool] = False  # the encoder attends in both directions
    summary: ClassVar[str] = "end"  # classifiers read the decoder's last position

    num_encoder_layers: Depth
    num_decoder_layers: Depth
    _: dataclasses.KW_ONLY
    block: str | tuple[str, ...] = "macaron"
    dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    activation_dropout: Dropout = 0.1
    max_length: Count = 1024
    position_layout: Literal["interleaved", "concatenated"] = "interleaved"
    embedding_scale: bool = True
    tied: bool = True
    scaled_logits: bool = False
    logits_bias: bool = False
    initializer: Literal["glorot_uniform", "lecun_normal"] = "glorot_uniform"
    initializer_range: Epsilon | None = None
    language_embeddings: bool = False
    two_way: bool = False
    num_source_layers: Depth | Literal[0] = 0
    source_vocab_size: Count | None = None

    def check(self) -> None:
        if self.hidden_dim % 2:
            raise self.error(f"hidden_dim={self.hidden_dim} is odd: give an even one")
        super().check()
        if self.without_attention:
            raise self.error(
                f"block={self.without_attention[0]!r} cannot decode token by token: give one that "
                f"can, such as {', '.join(SEQUENCE_BLOCKS)}"
            )
        if any(self.attention_windows):
            given = f"attention_windows={self.attention_windows}"
            raise self.error(
                f"{given}: an encoder-decoder attends all of its source: leave them out"
            )


def differing_fields(config: Settings, base: Settings) -> dict[str, Any]:
    """The fields of a configuration that differ from those of another one of its class.

    Schemes are equal if they spell the same operators, or those of the block.
    """
    found = {name: v for name, v in config.get_config().items() if v != getattr(base, name)}
    if "scheme" in found and "block" not in found and config.splittings == base.splittings:
        del found["scheme"]
    return found
