"""Settings of feed-forward layers and of Transformer blocks."""

import dataclasses
from typing import Annotated, Any, Literal

from annotated_types import Gt, Lt

from macaron_tf.errors import check_divisible
from macaron_tf.kernels import GATES
from macaron_tf.layers.dense import activation
from macaron_tf.layers.rotary import check_scaling
from macaron_tf.layers.scheme import Mix, parse_scheme
from macaron_tf.settings import Count, Dropout, NonNegative, OneOf, Positive, Settings, hints_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Settings):
    """Settings of a feed-forward layer.

    Attributes:
        feed_forward_dim: inner width F. In a block, the inner width of a feed-forward layer is F
            times the operator's `width` in the scheme.
        activation: activation of the inner channels. The papers use `"relu"` (translation) and
            `"gelu"` (BERT). `"gelu"` is the exact GELU, and `"gelu_tanh"` is its tanh
            approximation.
        activation_dropout: dropout rate of the inner activations.
        gated: whether the feed-forward layer is a gated linear unit (see `FeedForward`).
        use_bias: whether the matrices of the feed-forward layer have biases. In a block, this
            setting also applies to the attention matrices, except in relative attention, which has
            no biases.
    """

    feed_forward_dim: Count
    activation: str = "relu"
    activation_dropout: Dropout = 0.0
    gated: bool = False
    use_bias: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(FeedForwardConfig):
    """Settings of a Transformer block, which model configurations extend.

    Attributes:
        scheme: operators in order with their step sizes and widths, such as `"channels/2, tokens,
            channels/2"` (see `macaron_tf.layers.scheme`). `None` means the default scheme of the
            block.
        num_heads: number of attention heads H.
        num_kv_heads: number of key and value heads K in grouped-query attention. H / K query heads
            share each key and value head. `None` means H.
        head_dim: width d of an attention head. `None` means D / H.
        qk_norm: RMSNorm of queries and keys in self-attention, before rotary positions: `"none"`,
            `"head"` (within each head, Qwen 3) or `"heads"` (over all heads together, OLMo 2).
        scaled: whether attention scores are divided by sqrt(d).
        scale_dim: number whose square root divides attention scores in place of sqrt(d). Lu et al.
            2019 write the model width, but the released code divides by sqrt(d). `None` means d.
        attention_dropout: dropout rate of the attention weights.
        dropout: dropout rate of the sub-layer outputs.
        norm: `"pre"`, `"post"`, `"output"` or `"none"`. Pre-norm puts a norm before each sub-layer
            and a final norm after the stack. Post-norm puts a norm after each residual connection.
            `"output"` puts a norm after each sub-layer, before its output is added, and a final
            norm after the stack (OLMo 2). `"none"` leaves all of these norms out (Lu et al. 2019,
            footnote 2).
        epsilon: number added to the variance in norms.
        affine: whether LayerNorms have a scale and an offset.
        norm_type: `"layer"`, `"unbiased"` (LayerNorm without offset, as in ModernBERT) or `"rms"`
            (RMSNorm, as in T5).
        rnn_gate: activation of the gate in SwishRNN.
        max_length: maximum sequence length in gated MLPs and for learned positions.
        toeplitz: whether gated MLPs have one weight per distance between positions instead of one
            weight per pair of positions.
        num_experts: number of experts E in a mixture of experts, which replaces each feed-forward
            layer; every expert has the width of that layer. `None` means no mixture.
        experts_per_token: number of experts that are applied to a token.
        router_loss: weight of the load-balancing loss of each mixture.
        tiny_attention_dim: width of the attention head in block `"amlp"`.
        clamp_length: maximum distance in relative attention, to which larger distances are clipped.
            `None` means no limit.
        positions: position encoding inside attention: `"rotary"` (Llama), `"alibi"` or `"none"`.
        rotary_base: base of the rotary positions. A larger base suits longer texts.
        local_rotary_base: base of the rotary positions in layers with sliding-window attention.
            `None` means `rotary_base`.
        rotary_dim: number of channels per head that are rotated, counted from the first channel.
            `None` means all channels.
        rotary_scaling: scaling of the rotary frequencies for texts longer than in training. `()`
            means no scaling. `(factor,)` divides all frequencies by `factor`. `(factor, low, high,
            length)` is the scaling of Llama 3: a frequency with fewer than `low` full rotations in
            `length` positions is divided by `factor`, a frequency with at least `high` full
            rotations is unchanged, and a frequency in between is interpolated.
    """

    scheme: str | None = None
    num_heads: Count
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    qk_norm: Literal["none", "head", "heads"] = "none"
    scaled: bool = True
    scale_dim: Count | None = None
    attention_dropout: Dropout = 0.0
    dropout: Dropout = 0.0
    norm: Literal["pre", "post", "output", "none"] = "pre"
    epsilon: Annotated[float, Gt(0), Lt(1)] = 1e-5
    affine: bool = True
    norm_type: Literal["layer", "unbiased", "rms"] = "layer"
    rnn_gate: Annotated[str, OneOf(tuple(GATES))] = "gelu"
    max_length: Count = 512
    toeplitz: bool = False
    num_experts: Count | None = None
    experts_per_token: Count = 2
    router_loss: NonNegative = 0.01
    tiny_attention_dim: Count = 64
    clamp_length: Count | None = None
    positions: Literal["none", "rotary", "alibi"] = "none"
    rotary_base: Annotated[float, Gt(1)] = 10_000.0
    local_rotary_base: Annotated[float, Gt(1)] | None = None
    rotary_dim: Count | None = None
    rotary_scaling: tuple[Positive, ...] = ()

    def check(self) -> None:
        activation(self.activation)
        if self.norm_type != "layer" and not self.affine:
            raise self.error(f"norm_type={self.norm_type!r} always has a scale: set affine=True")
        if self.scale_dim and not self.scaled:
            raise self.error(f"scale_dim={self.scale_dim} needs scaled=True: leave one of them out")
        check_scaling(self.rotary_scaling)
        if self.num_experts is not None and self.num_experts < self.experts_per_token:
            raise self.error(f"num_experts={self.num_experts} is below experts_per_token")
        if self.num_kv_heads is not None:
            check_divisible("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        for mix in self.splitting():
            if mix.operator == "channels" and round(self.feed_forward_dim * mix.width) < 1:
                raise self.error(f"scheme={self.scheme!r} has no channel: raise feed_forward_dim")

    def splitting(self, default: tuple[Mix, ...] = ()) -> tuple[Mix, ...]:
        """Returns the parsed operators of `scheme`, or `default` if `scheme` is `None`."""
        try:
            return default if self.scheme is None else parse_scheme(self.scheme)
        except ValueError as error:
            raise self.error(f"scheme={self.scheme!r} is not valid, because {error}") from None


def take_fields(settings_class: type[Settings], arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes the fields of a settings class from `arguments` in place, and returns them."""
    hints = hints_of(settings_class)  # type: ignore[arg-type]
    return {name: arguments.pop(name) for name in hints if name in arguments}
