"""The frozen configurations of encoders and encoder-decoders."""

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
# Blocks that decode token by token, and whose tokens are mixed by attention.
SEQUENCE_BLOCKS = ("transformer", "macaron", "swish_rnn")
BY_ATTENTION = ("rotary", "alibi")  # positions that attention knows by itself


@dataclasses.dataclass(frozen=True)
class Sizes(Settings):
    """The sizes that every model has, which may be given by position.

    Attributes:
        vocab_size: V.
        hidden_dim: D.
        num_heads: H.
        feed_forward_dim: F of a whole layer; a Macaron layer halves it, a SwishRNN takes two
            thirds of it (see `SwishRNNBlock`).
    """

    vocab_size: Count
    hidden_dim: Count
    feed_forward_dim: Count
    num_heads: Count


@dataclasses.dataclass(frozen=True)
class StackConfig(BlockConfig, Sizes):
    """The fields that encoders and encoder-decoders share: of blocks, stacks and embeddings.

    Attributes:
        block: name of the layers' block, see `macaron_tf.layers.BLOCKS`, or a `Block` of your own,
            `package.module:Name`; or several, layer by layer in turn.
        rnn_step_sizes: k of the recurrences, layer by layer in turn: (1,), (2,) or (1, 2, 4).
        attention_windows: positions that attention sees, layer by layer in turn: in causal layers
            itself and those right before, (0, 256) is dense and banded, GPT-3's; in an encoder's
            half of them to each side, (0, 128, 128) is ModernBERT's; 0 = all.
        positions: `"sinusoidal"` or `"learned"`, added to embeddings; of attention to the sequence
            itself `"rotary"`, which turn queries and keys (Llama's), or `"alibi"`, by which scores
            fall with distance (Press et al. 2022); or `"none"`.
        relative_bias: T5's, on the attention of every stack to itself: `"none"`, `"shared"` by its
            layers or `"per_layer"`.
        embedding_norm: whether a LayerNorm follows the embeddings (BERT's, BART's).
        first_norm: whether pre-norm has a norm in front of the first sub-layer too; with
            `embedding_norm` ModernBERT has none.
        embedding_scale: whether token embeddings are multiplied by the root of their width.
        remat: whether a training computes each block's activations a second time in the backward
            pass instead of keeping them: a third more time, for memory of one block.
    """

    known_blocks: ClassVar[tuple[str, ...]] = tuple(BLOCKS)

    feed_forward_dim: Count  # again, to be given by position
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
            raise self.error("first_norm=False is of norm='pre': set that, or leave it")
        if self.positions == "rotary":
            head_dim = self.head_dim or self.hidden_dim // self.num_heads
            if (self.rotary_dim or head_dim) % 2:
                name = "rotary_dim" if self.rotary_dim else "head_dim"
                raise self.error(f"positions='rotary' turn pairs of channels: make {name} even")
            if (self.rotary_dim or 0) > head_dim:
                raise self.error(f"rotary_dim={self.rotary_dim} is more than head_dim={head_dim}")
        if self.positions in BY_ATTENTION and self.relative_bias != "none":
            raise self.error(f"positions={self.positions!r} and relative_bias exclude each other")
        for name, example in (("rnn_step_sizes", (1, 2, 4)), ("attention_windows", (0, 256))):
            if not getattr(self, name):
                raise self.error(f"{name} is empty: give one or more, such as {example}")
        if not self.blocks:
            raise self.error("block is empty: give a name, or several for the layers in turn")
        for block in self.blocks:
            own = is_place(block) and block_class(block)
            if not own and block not in self.known_blocks:
                known = ", ".join(map(repr, self.known_blocks))
                raise self.error(f"block={block!r} must be one of {known}")

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, layer by layer in turn."""
        return self.block if isinstance(self.block, tuple) else (self.block,)

    @property
    def splittings(self) -> tuple[tuple[Mix, ...], ...]:
        """The operators of the blocks, layer by layer in turn."""
        return tuple(self.splitting(block_class(block).scheme) for block in self.blocks)

    def layer(self, number: int) -> tuple[str, int, int]:
        """Of layer `number`: its block's name, its recurrence's step size, its window."""
        block = self.blocks[number % len(self.blocks)]
        step_size = self.rnn_step_sizes[number % len(self.rnn_step_sizes)]
        step_size = step_size if block == "swish_rnn" or is_place(block) else 1
        return block, step_size, self.attention_windows[number % len(self.attention_windows)]

    @property
    def outer_norm_type(self) -> str:
        """`norm_type` of the norms after the embeddings and in heads, never `"rms"`."""
        return "layer" if self.norm_type == "rms" else self.norm_type

    @property
    def relative(self) -> bool:
        """Whether attention compares distances, as Transformer-XL's."""
        return self.positions == "transformer_xl"

    @property
    def added_positions(self) -> str:
        """The positions that embeddings add; `"none"` where attention knows them."""
        return self.positions if self.positions in ("sinusoidal", "learned") else "none"

    @property
    def longest(self) -> int | None:
        """Greatest length; None = any."""
        bound = any(block_class(block).fixed_length for block in self.blocks)
        return self.max_length if bound or self.positions == "learned" else None

    @property
    def without_attention(self) -> list[str]:
        """The blocks whose tokens are mixed in another way, see `Block.attends`."""
        return sorted(block for block in set(self.blocks) if not block_class(block).attends)

    def check_room(self, room: int | None) -> None:
        """Refuses to decode more tokens than there are positions; None = as many as it takes."""
        if room is not None and self.longest is not None and room > self.longest:
            raise ValueError(
                f"max_length={room} is more than the {self.longest} positions of the model"
            )


# What reads the settings, sizes aside, that not every network does; its parts say so, see
# `Recording.reads`.
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
# Fields that no weight depends on.
FREE = (*DROPOUTS, "remat")


def shape_of(config: StackConfig) -> dict[str, Any]:
    """The shared fields that the weights of layers and embeddings depend on, by name."""
    return config.options(*(n for n in hints_of(StackConfig) if n not in (*DROPOUTS, "vocab_size")))


@dataclasses.dataclass(frozen=True)
class EncoderConfig(StackConfig):
    """Shapes, parts and dropouts of a BERT-style encoder; the defaults are BERT's.

    Attributes:
        num_layers: depth.
        activation: also of the masked language head.
        positions: as `StackConfig`'s, or `"transformer_xl"`: no position is
            added, but attention knows distances, and segments too are compared and not added
            (`RelativeAttention`), so that it may look back into a memory.
        affine: the masked language head's LayerNorm always has a scale and an offset.
        sharing: which weights all layers have in common: `"none"`, `"all"`, `"attention"` (the
            token mixers) or `"feed_forward"` (the channel mixers), each with its LayerNorm; of
            layers that differ in block, step size or window, those that are alike (ALBERT).
        embedding_dim: E, width of the embeddings, which a matrix then brings to D; None = D.
        shared_position_biases: whether the u and v of relative attention are the same in all
            layers.
        num_segments, num_languages: 0 for no such embeddings.
        causal: no position sees a later one, as in a language model.
        initializer_range: standard deviation of all matrices, cut off at two of them.
        scaled_outputs: the last matrix of each sub-layer starts 1/sqrt(sub-layers) as wide, so
            that their sum does not grow with depth (GPT-2).
        output_bias: whether a language model's scores have a bias for each token.
        adaptive_cutoffs, adaptive_divisor: a language model scores tokens by an `AdaptiveSoftmax`
            with these; no cutoffs = a softmax over the embedding table.
        tied: whether a language model scores tokens by their embeddings; if not, a table of its
            own does. Those of a tied adaptive softmax are as narrow for rare tokens
            (`AdaptiveEmbedding`).
        summary: the position that a classifier reads: `"first"`, [CLS]'s, or `"last"`, for rows
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
            raise self.error(f"scheme={self.scheme!r}: an encoder has no memory to attend")
        branches = any(mix.beside for scheme in self.splittings for mix in scheme)
        if branches and self.sharing in ("attention", "feed_forward"):
            raise self.error(
                f"sharing={self.sharing!r}: the branches of a step have one norm, which both "
                "operators need: take 'all' or 'none'"
            )
        if self.adaptive_cutoffs:
            # Whether the vocabulary reaches so far the layers check: it may not be known yet.
            if any(b <= a for a, b in itertools.pairwise(self.adaptive_cutoffs)):
                raise self.error(f"adaptive_cutoffs={self.adaptive_cutoffs} must ascend")
            try:
                cluster_width(self.hidden_dim, self.adaptive_divisor, len(self.adaptive_cutoffs))
            except ValueError as error:
                raise self.error(f"adaptive_{error}") from None
            if self.tied and self.embedding_width != self.hidden_dim:
                raise self.error(
                    f"embedding_dim={self.embedding_dim}: embeddings that are tied to an adaptive "
                    "softmax are as wide as the model: leave it, or set tied=False"
                )
        if any(self.attention_windows):
            given = f"attention_windows={self.attention_windows}"
            if self.relative or self.relative_bias != "none":
                raise self.error(
                    f"{given}: relative positions reach over the whole text: set "
                    "positions='learned' and relative_bias='none'"
                )
            if self.without_attention:
                raise self.error(f"{given}: block={self.without_attention[0]!r} has no attention")
        if self.relative:
            if self.relative_bias != "none":
                raise self.error("positions='transformer_xl' and relative_bias exclude each other")
            if self.without_attention:
                raise self.error(
                    f"positions='transformer_xl' needs blocks with attention, "
                    f"{', '.join(SEQUENCE_BLOCKS)}, not {', '.join(self.without_attention)}"
                )

    @property
    def adaptive_embeddings(self) -> bool:
        """Whether the embeddings are narrower for rare tokens."""
        return bool(self.adaptive_cutoffs) and self.tied and self.adaptive_divisor > 1

    @property
    def embedding_width(self) -> int:
        """E, of the embeddings."""
        return self.embedding_dim or self.hidden_dim


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(StackConfig):
    """Shapes, parts and dropouts of an encoder-decoder; the defaults are a translator's.

    Attributes:
        vocab_size: V, of the one joint vocabulary.
        num_encoder_layers, num_decoder_layers: depth.
        block: `"macaron"`, `"transformer"` or `"swish_rnn"`, or a `Block` of your own that decodes
            token by token, `package.module:Name`; or several, layer by layer in turn.
        max_length: greatest S and T of learned positions; source and target have a table each.
        position_layout: of the sinusoids.
        tied: whether the embeddings also score the target; if not, a matrix of its own does.
        scaled_logits: whether the output is divided by sqrt(D) before that (T5's, tied).
        logits_bias: whether every token of the vocabulary has a bias.
        initializer: of the matrices; T5's is `"lecun_normal"`. The embeddings start so wide that,
            scaled or not, they are of unit scale after the scaling.
        initializer_range: standard deviation of all matrices and tables, cut off at two of them
            (BART's); None = as `initializer` says.
        language_embeddings: whether a vector is added to every token of the source, and another
            one to those of the target (XLM's languages).
        two_way: whether one model reads and writes both languages: each side has vectors of its
            own language and of the other's.
        num_source_layers: depth of an encoder of its own that reads the source in front of the
            encoder, whose token embeddings it replaces (BART's translation); 0 = none.
        source_vocab_size: rows of that encoder's table; None = V.
    """

    known_blocks: ClassVar[tuple[str, ...]] = SEQUENCE_BLOCKS
    causal: ClassVar[bool] = False  # its encoder sees all of a text
    summary: ClassVar[str] = "end"  # a classifier reads the decoder's last position

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
            raise self.error(f"hidden_dim={self.hidden_dim} must be even")
        super().check()
        if self.without_attention:
            raise self.error(f"block={self.without_attention[0]!r} cannot decode token by token")
        if any(self.attention_windows):
            given = f"attention_windows={self.attention_windows}"
            raise self.error(f"{given}: an encoder-decoder attends all of its source")


def differing_fields(config: Settings, base: Settings) -> dict[str, Any]:
    """The fields of a configuration that differ from another one of its class.

    The scheme does not where it spells the same operators, or those of the block.
    """
    found = {name: v for name, v in config.get_config().items() if v != getattr(base, name)}
    if "scheme" in found and "block" not in found and config.splittings == base.splittings:
        del found["scheme"]
    return found
