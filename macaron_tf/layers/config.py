"""The options of blocks: each is declared, checked and documented here, once."""

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
        feed_forward_dim: inner width F; of a block, of all its channel mixers together.
        activation: of the inner channels; the papers use `"relu"` (translation) and `"gelu"`
            (BERT, exact; `"gelu_tanh"` is its approximation).
        activation_dropout: on inner activations.
        gated: whether a second product gates the inner channels, see `FeedForward`.
        use_bias: whether there are biases; of a block, in its attention too.
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
    """Options of a block, which the models' configurations extend.

    Attributes:
        scheme: the operators in order, with their steps and widths, such as `"channels/2, tokens,
            channels/2"`, see `macaron_tf.layers.scheme`; None = the block's own.
        num_heads: attention heads H.
        num_kv_heads: K, heads of keys and values, each for H / K heads of queries; None = H.
        head_dim: d of an attention head; None = D / H.
        scaled: whether attention scores are divided by sqrt(d).
        attention_dropout: on attention weights.
        dropout: on sub-layer outputs.
        norm: `"pre"`, with a last norm at the end of a stack, or `"post"`.
        epsilon: added to the norms' variances.
        affine: whether LayerNorms have a scale and an offset.
        norm_type: `"layer"`; `"unbiased"`: LayerNorms without an offset (ModernBERT's); or
            `"rms"`: neither centred nor offset (T5's).
        rnn_gate: of SwishRNN's recurrence.
        max_length: greatest L of gated MLPs, and of learned positions.
        toeplitz: gated MLPs have one weight for each distance of two positions, not for each
            pair of them.
        tiny_attention_dim: width of the attention in `"amlp"` blocks.
        clamp_length: distances beyond it count as it in relative attention; None = none does.
        positions: that attention knows by itself: `"rotary"` (Llama's), `"alibi"` or `"none"`.
        rotary_base: of rotary positions; a larger one is for longer texts.
        local_rotary_base: that of layers with a window; None = `rotary_base` too.
        rotary_dim: channels of a head that are turned, the first ones; None = all.
        rotary_scaling: slows rotations, for texts longer than those of the training. `(factor,)`
            divides all of them; Llama 3's `(factor, low, high, length)` those that turn less than
            `low` times in `length` positions, partly those below `high` times, and no others.
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
                    f"feed_forward_dim={self.feed_forward_dim}"
                )

    def rotary_options(self, window: int) -> dict[str, Any]:
        """Arguments of a `RotaryAttention` with that window."""
        base = (window and self.local_rotary_base) or self.rotary_base
        return {"rotary_base": base, **self.options("rotary_dim", "rotary_scaling")}

    def splitting(self, default: tuple[Mix, ...] = ()) -> tuple[Mix, ...]:
        """The operators of `scheme`, or the default ones."""
        try:
            return default if self.scheme is None else parse_scheme(self.scheme)
        except ValueError as error:
            raise self.error(f"scheme={self.scheme!r}: {error}") from None


def take_fields(kind: type[Settings], arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the fields of a configuration out of a layer's keyword arguments."""
    return {name: arguments.pop(name) for name in hints_of(kind) if name in arguments}
