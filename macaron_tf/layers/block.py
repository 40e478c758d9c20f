"""Layers as splitting schemes: which operators, in which order, with which step sizes.

A Transformer layer is Lie-Trotter splitting (mix tokens, then channels, full steps); a Macaron
layer is Strang-Marchuk splitting (half a step of channels, a full step of tokens, half a step of
channels). A new block is a new `scheme`, or another operator in place of one of the two.
"""

from dataclasses import dataclass

import keras

from macaron_tf.checks import check_choice
from macaron_tf.layers.activations import activation as activation_named
from macaron_tf.layers.attention import MultiHeadAttention, all_of, combine_masks
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.residual import Residual


@dataclass(frozen=True)
class Mix:
    """One operator of a scheme.

    Attributes:
        operator: `"tokens"` (attention: diffusion) or `"channels"` (feed-forward: convection).
        step_size: length of the Euler step.
        width: share of `feed_forward_dim` that a channel mixer gets.
    """

    operator: str
    step_size: float = 1.0
    width: float = 1.0


class Block(keras.layers.Layer):
    """One layer of an encoder or decoder: the sub-layers of `scheme`, each in a `Residual`.

    As an encoder block by default; `causal` makes it a language model's, `causal` and
    `cross_attention` together a decoder's, with attention to the memory right after the
    token mixer.

    Args:
        num_heads: attention heads H.
        feed_forward_dim: inner width F of all channel mixers together.
        causal: no position sees a later one.
        cross_attention: add attention to a memory.
        dropout: on every sub-layer's output, 0 to 1.
        attention_dropout: on attention weights, 0 to 1.
        activation_dropout: on inner activations of the feed-forward, 0 to 1.
        activation: of the feed-forward.
        norm: `"pre"` or `"post"`.
        epsilon: of the LayerNorms.
        affine: whether the LayerNorms have a trained scale and offset.
        kernel_initializer: of all matrices.

    Call arguments: `x (B, T, D)`; `memory (B, S, D)` with `cross_attention`; `attention_mask` over
    x, `(B, T)`, `(B, T, T)` or `(B, H, T, T)`, and `memory_mask (B, S)`, both boolean with True =
    attend; `mask` or `x_mask (B, T)`, Keras's own padding mask of x, which counts besides
    `attention_mask` and is what a recurrence passes over; `attention_bias`, added to the scores of
    the token mixer, that broadcasts to `(B, H, T, T)`. Returns `(B, T, D)`.

    Raises:
        ValueError: `norm` or an operator of the scheme is none of those there are.
    """

    scheme: tuple[Mix, ...] = ()

    def __init__(
        self,
        num_heads: int,
        feed_forward_dim: int,
        causal: bool = False,
        cross_attention: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation="relu",
        norm: str = "pre",
        epsilon: float = 1e-5,
        affine: bool = True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # as of `Residual`
        self.supports_masking = True
        self.num_heads = num_heads
        self.feed_forward_dim = feed_forward_dim
        self.causal = causal
        self.cross_attention = cross_attention
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = activation_named(activation)
        self.norm = norm
        self.epsilon = epsilon
        self.affine = affine
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self._sublayers = self._assemble()

    def token_mixer(self) -> keras.layers.Layer:
        """Makes the operator between positions; a block with another one overrides this."""
        return MultiHeadAttention(
            self.num_heads,
            dropout=self.attention_dropout,
            causal=self.causal,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="attention",
        )

    def channel_mixer(self, feed_forward_dim: int) -> keras.layers.Layer:
        """Makes the operator within a position; a block with another one overrides this."""
        return FeedForward(
            feed_forward_dim,
            activation=self.activation,
            activation_dropout=self.activation_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _assemble(self) -> list[tuple[str, Residual]]:
        sublayers = []
        for number, mix in enumerate(self.scheme):
            check_choice("operator", mix.operator, ("tokens", "channels"))
            if mix.operator == "tokens":
                sublayers.append(
                    ("tokens", self._residual(f"attention_{number}", self.token_mixer()))
                )
                if self.cross_attention:
                    cross = MultiHeadAttention(
                        self.num_heads,
                        dropout=self.attention_dropout,
                        cross=True,
                        kernel_initializer=self.kernel_initializer.clone(),
                        dtype=self.dtype_policy,
                        name="attention",
                    )
                    sublayers.append(("memory", self._residual(f"cross_attention_{number}", cross)))
            else:
                mixer = self.channel_mixer(round(self.feed_forward_dim * mix.width))
                residual = self._residual(f"feed_forward_{number}", mixer, mix.step_size)
                remembers = hasattr(mixer, "empty_cache")
                sublayers.append(("recurrence" if remembers else "channels", residual))
        return sublayers

    def _residual(
        self, name: str, sublayer: keras.layers.Layer, step_size: float = 1.0
    ) -> Residual:
        residual = Residual(
            sublayer,
            step_size=step_size,
            dropout=self.dropout,
            norm=self.norm,
            epsilon=self.epsilon,
            affine=self.affine,
            dtype=self.dtype_policy,
            name=name,
        )
        # Tracked by Keras under its own name: weight paths read `block/feed_forward_0/...`.
        setattr(self, name, residual)
        return residual

    def build(self, x_shape, memory_shape=None):
        for kind, residual in self._sublayers:
            residual.build(x_shape, *([memory_shape] if kind == "memory" else []))
        self.built = True

    def call(
        self,
        x,
        memory=None,
        attention_mask=None,
        memory_mask=None,
        mask=None,
        x_mask=None,
        attention_bias=None,
        training=None,
    ):
        attention_mask = combine_masks(attention_mask, mask, x_mask)
        padding_mask = all_of(mask, x_mask)
        for kind, residual in self._sublayers:
            if kind == "tokens":
                x = residual(
                    x,
                    attention_mask=attention_mask,
                    attention_bias=attention_bias,
                    training=training,
                )
            elif kind == "recurrence":
                x = residual(x, mask=padding_mask, training=training)
            elif kind == "memory":
                x = residual(x, memory=memory, attention_mask=memory_mask, training=training)
            else:
                x = residual(x, training=training)
        return x

    def start(self, memory):
        """What cached decoding keeps of the memory `(B, S, D)`, once for each sentence."""
        return [
            residual.sublayer.start(memory)
            for kind, residual in self._sublayers
            if kind == "memory"
        ]

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for the past of K hypotheses, `(B, K, ...)` in every tensor."""
        return [
            residual.sublayer.empty_cache(batch_size, beam_size, max_length)
            for kind, residual in self._sublayers
            if kind in ("tokens", "recurrence")
        ]

    def step(self, x, index, context, cache, memory_mask=None):
        """One token of each hypothesis through the block.

        Args:
            x: `(B K, D)` or `(B, K, D)`, the new tokens.
            index: scalar int32 or None, see `MultiHeadAttention.step`.
            context: from `start`; `cache`: from `empty_cache` or the last step.
            memory_mask: `(B, S)` boolean.

        Returns:
            An output of the shape of x, and the new cache.
        """
        context, cache, new_cache = iter(context), iter(cache), []
        for kind, residual in self._sublayers:
            if kind in ("tokens", "recurrence"):
                x, held = residual.step(x, index, next(cache))
                new_cache.append(held)
            elif kind == "memory":
                x, _ = residual.step(x, index, next(context), memory_mask)
            else:
                x = residual(x, training=False)
        return x, new_cache

    def compute_output_shape(self, x_shape, memory_shape=None):
        return tuple(x_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "feed_forward_dim": self.feed_forward_dim,
            "causal": self.causal,
            "cross_attention": self.cross_attention,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": keras.activations.serialize(self.activation),
            "norm": self.norm,
            "epsilon": self.epsilon,
            "affine": self.affine,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
