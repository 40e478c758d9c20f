"""Configurations of encoders and encoder-decoders."""

import dataclasses
import itertools
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from macaron_tf.errors import check_divisible
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import BLOCKS, block_class
from macaron_tf.layers.config import BlockConfig
from macaron_tf.layers.rotary import rotated_width
from macaron_tf.layers.scheme import Mix
from macaron_tf.settings import Count, Depth, Dropout, Natural, OneOf, Settings, hints_of
from macaron_tf.special import Special

Epsilon = Annotated[float, Gt(0), Lt(1)]
# Blocks with attention, which decode token by token.
SEQUENCE_BLOCKS = ("transformer", "macaron", "swish_rnn", "gated_deltanet")
_BlockName = Annotated[str, OneOf(tuple(BLOCKS), Block)]
_SequenceBlockName = Annotated[str, OneOf(SEQUENCE_BLOCKS, Block)]
BY_ATTENTION = ("rotary", "alibi")  # position encodings inside attention


@dataclasses.dataclass(frozen=True)
class Sizes(Settings):
    """Sizes of a model. Subclasses accept the sizes as positional arguments.

    Attributes:
        vocab_size: vocabulary size V.
        hidden_dim: width D of the hidden states.
        num_heads: number of attention heads H.
        feed_forward_dim: total feed-forward width F in a layer with the block's default scheme.
            Each of Macaron's two feed-forward layers then has width F / 2. The width of SwishRNN is
            two thirds of F (see `SwishRNNBlock`).
    """

    vocab_size: Count
    hidden_dim: Count
    feed_forward_dim: Count
    num_heads: Count


@dataclasses.dataclass(frozen=True)
class StackConfig(BlockConfig, Sizes):
    """Settings that encoders and encoder-decoders share.

    Attributes:
        block: type of the blocks: a key of `macaron_tf.layers.BLOCKS`, or your own `Block` subclass
            as `package.module:Name` or `FILE.py:Name`. With several blocks, the layers cycle
            through the list.
        rnn_step_sizes: step sizes of the recurrences, such as (1,), (2,) or (1, 2, 4). The layers
            cycle through the list.
        attention_windows: windows of sliding-window attention in positions. 0 means full attention.
            The layers cycle through the list. In a causal model, a window covers the last positions
            up to the current position: (0, 256) alternates full and sliding-window attention
            (GPT-3). In an encoder, half of the window is on each side: ModernBERT uses (0, 128,
            128).
        positions: position encoding. `"sinusoidal"` and `"learned"` encodings are added to the
            embeddings. `"rotary"` rotates queries and keys (Llama). `"alibi"` lowers attention
            scores in proportion to the distance (Press et al. 2022). `"none"` means no position
            encoding.
        relative_bias: T5's relative position bias in self-attention: `"none"`, `"shared"` by all
            layers of a stack, or `"per_layer"`.
        embedding_norm: whether a LayerNorm follows the embeddings (BERT, BART).
        first_norm: whether the first sub-layer of a pre-norm stack has a norm. ModernBERT has no
            such norm, because `embedding_norm` directly precedes the sub-layer.
        position_offset: number of unused rows before the learned positions (RoBERTa and BART of
            other libraries: 2).
        pad_id: id of the padding token, which no position attends to. The vocabulary determines it.
        embedding_scale: whether token embeddings are multiplied by the square root of their width.
        remat: whether to use gradient checkpointing, which recomputes the activations of each block
            in the backward pass. Training then takes about one third more time, but stores only the
            inputs of all blocks and the activations of one block.
    """

    feed_forward_dim: Count  # repeated, so that these fields stay positional arguments
    num_heads: Count
    _: dataclasses.KW_ONLY
    block: _BlockName | tuple[_BlockName, ...] = "transformer"
    rnn_step_sizes: tuple[Count, ...] = (1,)
    attention_windows: tuple[Natural, ...] = (0,)
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "sinusoidal"
    relative_bias: Literal["none", "shared", "per_layer"] = "none"
    embedding_norm: bool = False
    first_norm: bool = True
    position_offset: Natural = 0
    pad_id: Natural = Special.pad
    embedding_scale: bool = False
    remat: bool = False
    toeplitz: bool = True

    def check(self) -> None:
        super().check()
        if self.head_dim is None:
            check_divisible("hidden_dim", self.hidden_dim, "num_heads", self.num_heads)
        if self.norm != "pre" and not self.first_norm:
            raise self.error("first_norm=False needs norm='pre': set norm='pre' or first_norm=True")
        if self.positions == "rotary":
            rotated_width(self.rotary_dim, self.head_dim or self.hidden_dim // self.num_heads)
        if self.positions in (*BY_ATTENTION, "transformer_xl") and self.relative_bias != "none":
            raise self.error(f"positions={self.positions!r} needs relative_bias='none'")
        for name in ("rnn_step_sizes", "attention_windows", "block"):
            if not getattr(self, name):
                raise self.error(f"{name} is empty: give at least one value")

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks. The layers cycle through these names."""
        return self.block if isinstance(self.block, tuple) else (self.block,)

    @property
    def splittings(self) -> tuple[tuple[Mix, ...], ...]:
        """Splitting schemes of the blocks. The layers cycle through these schemes."""
        return tuple(self.splitting(block_class(block).scheme) for block in self.blocks)

    def layer(self, index: int) -> tuple[str, int, int]:
        """Returns the block name, the recurrence's step size and the attention window of a layer.

        The step size is 1 if the block is a block of this library without a recurrence.
        """
        block = self.blocks[index % len(self.blocks)]
        step_size = self.rnn_step_sizes[index % len(self.rnn_step_sizes)]
        step_size = step_size if block == "swish_rnn" or is_import_path(block) else 1
        return block, step_size, self.attention_windows[index % len(self.attention_windows)]

    @property
    def outer_norm_type(self) -> str:
        """Type of the norms after embeddings and in heads: `"layer"` if `norm_type` is `"rms"`."""
        return "layer" if self.norm_type == "rms" else self.norm_type

    def embedding_options(self) -> dict[str, Any]:
        """Returns the arguments that all models pass to `EncoderEmbeddings`."""
        names = ("vocab_size", "max_length", "position_offset", "dropout", "epsilon", "affine")
        positions = self.positions if self.positions in ("sinusoidal", "learned") else "none"
        options = {"positions": positions, "norm": self.embedding_norm}
        return {**options, "norm_type": self.outer_norm_type, **self.options(*names)}

    @property
    def longest(self) -> int | None:
        """Maximum sequence length in tokens. `None` means no limit."""
        bound = any(block_class(block).fixed_length for block in self.blocks)
        return self.max_length if bound or self.positions == "learned" else None

    @property
    def without_attention(self) -> list[str]:
        """Names of the blocks that cannot decode token by token (see `Block.attends`)."""
        return sorted(block for block in set(self.blocks) if not block_class(block).attends)

    def check_length(self, length: int | None) -> None:
        """Raises a ValueError if `length` is not `None` and exceeds the maximum sequence length."""
        if length is not None and self.longest is not None and length > self.longest:
            raise ValueError(f"max_length={length} is too long: give at most {self.longest}")


# Settings that only some layers read. Each layer lists those that it reads in `Recording.reads`.
READ_BY_SOME = (
    *("head_dim", "scaled", "relative_bias", "num_kv_heads", "qk_norm", "attention_dropout"),
    *("scale_dim", "activation", "num_experts", "experts_per_token", "router_loss"),
    *("activation_dropout", "gated", "use_bias", "scaled_outputs", "rnn_gate", "rnn_step_sizes"),
    *("toeplitz", "tiny_attention_dim", "clamp_length", "shared_position_biases"),
    *("position_layout", "rotary_base", "rotary_dim", "rotary_scaling", "local_rotary_base"),
    *("positions", "output_bias", "adaptive_divisor", "tied", "initializer"),
    *("embedding_dropout", "kernel_size"),
)

DROPOUTS = tuple(name for name in hints_of(StackConfig) if name.endswith("dropout"))
# Fields that do not affect the weights.
WEIGHTLESS_FIELDS = (*DROPOUTS, "remat")


def architecture_of(config: StackConfig) -> dict[str, Any]:
    """Returns the fields of `StackConfig`, except dropout rates and `vocab_size`, as a dict."""
    left_out = (*DROPOUTS, "vocab_size")
    return config.options(*(name for name in hints_of(StackConfig) if name not in left_out))


@dataclasses.dataclass(frozen=True)
class EncoderConfig(StackConfig):
    """Configuration of an encoder. The defaults are BERT's.

    Attributes:
        num_layers: number of layers.
        activation: activation of the feed-forward layers and of the masked language head.
        positions: position encoding (see `StackConfig`). `"transformer_xl"` means relative
            attention without added positions. Relative attention supports a memory and compares
            segments instead of adding segment embeddings (see `RelativeAttention`).
        affine: whether LayerNorms have a scale and an offset. The LayerNorm in the masked language
            head always has a scale and an offset.
        sharing: weights that all layers share (ALBERT), including norms: `"none"`, `"all"`,
            `"attention"` (token mixers) or `"feed_forward"` (channel mixers). Layers share weights
            only if they have the same block, step size, window and norms.
        embedding_dim: width E of the embeddings, which a matrix projects to D. `None` means D.
        shared_position_biases: whether all layers share the bias vectors u and v of relative
            attention.
        num_segments: number of segment embeddings. 0 means no segment embeddings.
        num_languages: number of language embeddings. 0 means no language embeddings.
        causal: whether no position sees later positions, as in a language model.
        initializer_range: standard deviation of the truncated normal initializer for matrices and
            embedding tables. The distribution is truncated at two standard deviations. Spatial
            weights of gated MLPs and projections of adaptive embeddings have other initializers.
        scaled_outputs: whether the initial standard deviation of the last matrix in each sub-layer
            is divided by sqrt(number of sub-layers), so that the sum over sub-layers does not grow
            with depth (GPT-2).
        output_bias: whether a language model adds one bias per token to its logits.
        adaptive_cutoffs: cutoffs of a language model's adaptive softmax (see `AdaptiveSoftmax`).
            `()` means a full softmax.
        adaptive_divisor: factor between the widths of successive clusters in the adaptive softmax.
        tied: whether a language model uses its embedding table as the output matrix. Otherwise, the
            model has a separate output matrix. With an adaptive softmax and `adaptive_divisor`
            above 1, tied embeddings are narrower for rare tokens (see `AdaptiveEmbedding`).
        summary: what a classifier reads: `"first"` (the position of [CLS] at the start, as in
            BERT), `"last"` ([CLS] at the end, as in XLNet) or `"mean"` (the mean of all positions,
            as in ModernBERT).
    """

    num_layers: Depth
    _: dataclasses.KW_ONLY
    dropout: Dropout = 0.1
    attention_dropout: Dropout = 0.1
    activation: str = "gelu"
    norm: Literal["pre", "post", "output", "none"] = "post"
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
    summary: Literal["first", "last", "mean"] = "first"

    def check(self) -> None:
        super().check()
        if any(mix.operator == "memory" for mix in self.splitting()):
            raise self.error(f"scheme={self.scheme!r} has 'memory' in an encoder: remove 'memory'")
        shares_part = self.sharing in ("attention", "feed_forward")
        if shares_part and any(mix.beside for scheme in self.splittings for mix in scheme):
            raise self.error(f"sharing={self.sharing!r} excludes branches (&): set 'all' or 'none'")
        if self.adaptive_cutoffs:
            # The layers check the size of the vocabulary, which may not be known here.
            if any(b <= a for a, b in itertools.pairwise(self.adaptive_cutoffs)):
                raise self.error(f"adaptive_cutoffs={self.adaptive_cutoffs} must ascend: sort them")
            if self.adaptive_divisor ** len(self.adaptive_cutoffs) > self.hidden_dim:
                raise self.error(f"adaptive_divisor={self.adaptive_divisor} is too large: lower it")
            if self.tied and self.embedding_width != self.hidden_dim:
                raise self.error("embedding_dim with adaptive_cutoffs needs tied=False")
        setting = "positions='transformer_xl'" if self.positions == "transformer_xl" else ""
        if any(self.attention_windows):
            if setting or self.relative_bias != "none":
                other = setting or f"relative_bias={self.relative_bias!r}"
                raise self.error(f"attention_windows excludes {other}: remove one")
            setting = "attention_windows"
        if setting and self.without_attention:
            raise self.error(f"{setting} excludes block={self.without_attention[0]!r}: remove one")

    @property
    def embedding_width(self) -> int:
        return self.embedding_dim or self.hidden_dim


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(StackConfig):
    """Configuration of an encoder-decoder. The defaults suit translation.

    Attributes:
        vocab_size: size V of the joint vocabulary.
        num_encoder_layers: number of encoder layers.
        num_decoder_layers: number of decoder layers.
        block: type of the blocks: `"macaron"`, `"transformer"`, `"swish_rnn"`, or your own `Block`
            subclass that decodes token by token, as `package.module:Name` or `FILE.py:Name`. With
            several blocks, the layers cycle through the list.
        max_length: maximum source and target length for learned positions. Source and target have
            separate position tables.
        position_layout: order of sines and cosines (see `SinusoidalPositions`).
        tied: whether the embedding table is also the output matrix. Otherwise, the model has a
            separate output matrix.
        scaled_logits: whether the decoder's output is divided by sqrt(D) before the output matrix
            (T5 with tied embeddings).
        logits_bias: whether the model adds one bias per token to the logits.
        initializer: initializer of the matrices. T5 uses `"lecun_normal"`. Embeddings start at unit
            scale, after the multiplication by sqrt(D) if `embedding_scale` is set.
        initializer_range: standard deviation of the truncated normal initializer for all matrices
            and tables (BART). The distribution is truncated at two standard deviations. `None`
            means the initializer in `initializer`.
        language_embeddings: whether to add one vector to all source embeddings and another vector
            to all target embeddings (the language embeddings of XLM).
        two_way: whether the model translates in both directions. Source and target then each have
            one language vector for their own language and one for the other language.
        num_source_layers: number of layers in an additional source encoder, whose output replaces
            the source's token embeddings (BART fine-tuned for translation). 0 means no additional
            encoder.
        source_vocab_size: vocabulary size of the additional source encoder. `None` means V.
        begin_id, end_id: ids of the decoder's first input, BOS, and of the last token of sources
            and targets, EOS. The vocabulary determines them.
    """

    causal: ClassVar[bool] = False  # the encoder attends in both directions
    summary: ClassVar[str] = "end"  # classifiers read the last position of the decoder

    num_encoder_layers: Depth
    num_decoder_layers: Depth
    _: dataclasses.KW_ONLY
    block: _SequenceBlockName | tuple[_SequenceBlockName, ...] = "macaron"
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
    begin_id: Natural = Special.begin
    end_id: Natural = Special.end

    @property
    def special(self) -> Special:
        return Special(pad=self.pad_id, begin=self.begin_id, end=self.end_id)

    def check(self) -> None:
        super().check()
        if self.without_attention:
            raise self.error(f"block={self.without_attention[0]!r} needs attends=True to decode")
        if any(self.attention_windows):
            raise self.error("attention_windows needs an encoder: leave it out")


def differing_fields(config: Any, base: Any) -> dict[str, Any]:
    """Returns a dict of the fields of `config` whose values differ from `base`, of the same class.

    Schemes are equal if they have the same operators with the same options.
    """
    values = config.get_config().items()
    differing = {name: value for name, value in values if value != getattr(base, name)}
    if "scheme" in differing and "block" not in differing and config.splittings == base.splittings:
        del differing["scheme"]
    return differing
