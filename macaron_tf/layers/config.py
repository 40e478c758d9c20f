"""Configurations of feed-forwards and blocks: declares, documents and checks their options."""

import dataclasses
from typing import Annotated, Any, Literal

from annotated_types import Gt, Lt

from macaron_tf.errors import check_divisible
from macaron_tf.kernels import GATES
from macaron_tf.layers.dense import activation
from macaron_tf.layers.rotary import check_scaling
from macaron_tf.layers.scheme import Mix, parse_scheme
from macaron_tf.settings import Count, Dropout, OneOf, Positive, Settings, hints_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Settings):
    """Options of a feed-forward.

    Attributes:
        feed_forward_dim: inner width F; in a block, the sum over its channel mixers.
        activation: activation of the inner channels. The papers use `"relu"` (translation) and
            `"gelu"` (BERT); `"gelu"` is exact and `"gelu_tanh"` its approximation.
        activation_dropout: dropout rate of the inner activations.
        gated: whether a second product gates the inner channels, see `FeedForward`.
        use_bias: whether matrices have biases; in a block, those of attention too.
    """

    feed_forward_dim: Count
    activation: str = "relu"
    activation_dropout: Dropout = 0.0
    gated: bool = False
    use_bias: bool = True

    def check(self) -> None:
        activation(self.activation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(FeedForwardConfig):
    """Options of a block; the models' configurations extend them.

    Attributes:
        scheme: operators in order with their step sizes and widths, such as
            `"channels/2, tokens, channels/2"`, see `macaron_tf.layers.scheme`; None: the block's
            own scheme.
        num_heads: H, the number of attention heads.
        num_kv_heads: K, the number of key and value heads, each shared by H / K query heads;
            None: H.
        head_dim: d, the width of an attention head; None: D / H.
        scaled: whether attention scores are divided by sqrt(d).
        attention_dropout: dropout rate of the attention weights.
        dropout: dropout rate of the sub-layers' outputs.
        norm: `"pre"`, norms before sub-layers and one at the end of the stack, or `"post"`, norms
            after residual connections.
        epsilon: number added to variances in norms.
        affine: whether LayerNorms have a scale and an offset.
        norm_type: `"layer"`; `"unbiased"`, LayerNorm without offset (ModernBERT); or `"rms"`,
            RMSNorm, neither centred nor with offset (T5).
        rnn_gate: activation of the gate in SwishRNN.
        max_length: greatest L of gated MLPs and of learned positions.
        toeplitz: whether gated MLPs have one weight per distance of two positions instead of one
            per pair of positions.
        tiny_attention_dim: width of the attention head in block `"amlp"`.
        clamp_length: greatest distance in relative attention, larger ones count as this one;
            None: no limit.
        positions: position encoding inside attention: `"rotary"` (Llama), `"alibi"` or `"none"`.
        rotary_base: base of rotary positions; a larger one suits longer texts.
        local_rotary_base: base of rotary positions in layers with a window; None: `rotary_base`.
        rotary_dim: number of channels in a head that are rotated, the first ones; None: all.
        rotary_scaling: slower rotations for texts longer than in training; `()`: none. `(factor,)`
            divides all frequencies. Llama 3's `(factor, low, high, length)` divides those with less
            than `low` turns in `length` positions, interpolates up to `high` turns, and leaves the
            others unchanged.
    """

    scheme: str | None = None
    num_heads: Count
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    scaled: bool = True
    attention_dropout: Dropout = 0.0
    dropout: Dropout = 0.0
    norm: Literal["pre", "post"] = "pre"
    epsilon: Annotated[float, Gt(0), Lt(1)] = 1e-5
    affine: bool = True
    norm_type: Literal["layer", "unbiased", "rms"] = "layer"
    rnn_gate: Annotated[str, OneOf(tuple(GATES))] = "gelu"
    max_length: Count = 512
    toeplitz: bool = False
    tiny_attention_dim: Count = 64
    clamp_length: Count | None = None
    positions: Literal["none", "rotary", "alibi"] = "none"
    rotary_base: Annotated[float, Gt(1)] = 10_000.0
    local_rotary_base: Annotated[float, Gt(1)] | None = None
    rotary_dim: Count | None = None
    rotary_scaling: tuple[Positive, ...] = ()

    def check(self) -> None:
        super().check()
        if self.norm_type != "layer" and not self.affine:
            raise self.error(f"norm_type={self.norm_type!r} always has a scale: set affine=True")
        try:
            check_scaling(self.rotary_scaling)
        except ValueError as error:
            raise self.error(str(error)) from None
        if self.num_kv_heads is not None:
            check_divisible("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        for mix in self.splitting():
            if mix.operator == "channels" and round(self.feed_forward_dim * mix.width) < 1:
                raise self.error(
                    f"scheme={self.scheme!r}: a width of {mix.width:g} leaves no channel of "
                    f"feed_forward_dim={self.feed_forward_dim}: raise one of the two"
                )

    def rotary_options(self, window: int) -> dict[str, Any]:
        """Arguments of a `RotaryAttention` whose window is `window` (0: none)."""
        base = (window and self.local_rotary_base) or self.rotary_base
        return {"rotary_base": base, **self.options("rotary_dim", "rotary_scaling")}

    def splitting(self, default: tuple[Mix, ...] = ()) -> tuple[Mix, ...]:
        """The operators of `scheme`, or `default` without one."""
        try:
            return default if self.scheme is None else parse_scheme(self.scheme)
        except ValueError as error:
            raise self.error(f"scheme={self.scheme!r}: {error}") from None


def take_fields(kind: type[Settings], arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes the fields of a configuration from a layer's keyword arguments and returns them."""
    return {name: arguments.pop(name) for name in hints_of(kind) if name in arguments}
