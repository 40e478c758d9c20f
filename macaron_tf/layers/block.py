"""Layers as splitting schemes: which operators, in which order, with which step sizes.

A Transformer layer is Lie-Trotter splitting (mix tokens, then channels, full steps); a Macaron
layer is Strang-Marchuk splitting (half a step of channels, a full step of tokens, half a step of
channels). A new block is a new `scheme`, or another operator in place of one of the two.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras

from macaron_tf.checks import check_choice
from macaron_tf.layers.activations import activation as activation_named
from macaron_tf.layers.attention import MultiHeadAttention, all_of
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.residual import Residual

OPERATORS = ("tokens", "memory", "channels")


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

    A sub-layer is given those of `attention_mask`, `attention_bias` and `mask` (padding) that its
    own `call` names: attention all three, a recurrence or a gated MLP the padding alone.

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
    `attention_mask`; `attention_bias`, added to the scores of the token mixer, that broadcasts to
    `(B, H, T, T)`. Returns `(B, T, D)`.

    Raises:
        ValueError: `norm` or an operator of the scheme is none of those there are.
    """

    scheme: tuple[Mix, ...] = ()
    attends = True  # whether its token mixer has scores that a bias can be added to

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
        self._names = []
        for operator, name, mixer, step_size in self._mixers():
            residual = Residual(
                mixer,
                step_size=step_size,
                dropout=dropout,
                norm=norm,
                epsilon=epsilon,
                affine=affine,
                dtype=self.dtype_policy,
                name=name,
            )
            # Tracked by Keras under its own name: weight paths read `block/feed_forward_0/...`.
            setattr(self, name, residual)
            self._names.append((operator, name))

    def token_mixer(self) -> keras.layers.Layer:
        """Makes the operator between positions; a block with another one overrides this."""
        return self._attention(causal=self.causal)

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

    def _attention(self, **kind) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.num_heads,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="attention",
            **kind,
        )

    def _mixers(self) -> Iterator[tuple[str, str, keras.layers.Layer, float]]:
        """Operator, name, layer and step size of every sub-layer in turn."""
        for number, mix in enumerate(self.scheme):
            if check_choice("operator", mix.operator, ("tokens", "channels")) == "tokens":
                mixer = self.token_mixer()
                yield "tokens", f"{mixer.name}_{number}", mixer, mix.step_size
                if self.cross_attention:
                    yield "memory", f"cross_attention_{number}", self._attention(cross=True), 1.0
            else:
                mixer = self.channel_mixer(round(self.feed_forward_dim * mix.width))
                yield "channels", f"feed_forward_{number}", mixer, mix.step_size

    @property
    def _sublayers(self) -> list[tuple[str, Residual]]:
        return [(operator, getattr(self, name)) for operator, name in self._names]

    def share(self, other: "Block", operators: Sequence[str] = OPERATORS) -> None:
        """Puts another block's sub-layers, norms included, in place of this one's, before `build`.

        Keras then tracks, counts and saves their weights once. Not part of the config.

        Args:
            other: a block with equal options.
            operators: whose sub-layers: of `"tokens"`, `"memory"` and `"channels"`.

        Raises:
            ValueError: an unknown operator, this block is built, or the options differ.

        References: Lan et al. 2020 (ALBERT), section 3.1.
        """
        for operator in operators:
            check_choice("operators", operator, OPERATORS)
        if self.built:
            raise ValueError(f"{self.name} is built already: share before build")
        for operator, name in self._names:
            if operator in operators:
                own, shared = getattr(self, name), getattr(other, name, None)
                if shared is None or _options(own) != _options(shared):
                    raise ValueError(f"{name} of {self.name} has other options than {other.name}'s")
                # Keras would go on tracking the state of a layer whose attribute is only replaced.
                self._tracker.untrack(own)
                setattr(self, name, shared)

    def build(self, x_shape, memory_shape=None):
        for operator, residual in self._sublayers:
            if not residual.built:  # by a block that shares it
                residual.build(x_shape, *([memory_shape] if operator == "memory" else []))
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
        own = {
            "attention_mask": attention_mask,
            "attention_bias": attention_bias,
            "mask": all_of(mask, x_mask),
        }
        of_memory = {"memory": memory, "memory_mask": memory_mask}
        for operator, residual in self._sublayers:
            offered = of_memory if operator == "memory" else own
            taken = inspect.signature(residual.sublayer.call).parameters
            arguments = {name: value for name, value in offered.items() if name in taken}
            x = residual(x, **arguments, training=training)
        return x

    def start(self, memory):
        """What cached decoding keeps of the memory `(B, S, D)`, once for each sentence."""
        return [
            residual.sublayer.start(memory)
            for operator, residual in self._sublayers
            if operator == "memory"
        ]

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for the past of K hypotheses, `(B, K, ...)` in every tensor.

        Raises:
            ValueError: the token mixer needs the whole sequence at once.
        """
        return [
            residual.sublayer.empty_cache(batch_size, beam_size, max_length)
            for operator, residual in self._sublayers
            if self._remembers(operator, residual)
        ]

    def _remembers(self, operator: str, residual: Residual) -> bool:
        """Whether cached decoding keeps a past for this sub-layer; raises where it cannot."""
        cached = hasattr(residual.sublayer, "empty_cache")
        if operator == "tokens" and not cached:
            raise ValueError(
                f"cached decoding with a {type(self).__name__} is not supported: "
                f"{residual.name} needs the whole sequence at once"
            )
        return cached and operator != "memory"

    def step(self, x, index, context, cache, memory_mask=None):
        """One token of each hypothesis through the block.

        Args:
            x: `(B K, D)` or `(B, K, D)`, the new tokens.
            index: scalar int32 or None, see `MultiHeadAttention.step`.
            context: from `start`; `cache`: from `empty_cache` or the last step.
            memory_mask: `(B, S)` boolean.

        Returns:
            An output of the shape of x, and the new cache.

        Raises:
            ValueError: as `empty_cache`.
        """
        context, cache, new_cache = iter(context), iter(cache), []
        for operator, residual in self._sublayers:
            if operator == "memory":
                x, _ = residual.step(x, index, next(context), memory_mask)
            elif self._remembers(operator, residual):
                x, held = residual.step(x, index, next(cache))
                new_cache.append(held)
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


def _options(residual: Residual) -> list[tuple]:
    """What must be equal in two residuals for one to take the other's place."""
    options = [*residual.get_config().items(), *residual.sublayer.get_config().items()]
    # Without objects, such as initializers: Keras numbers them while it loads a model.
    return [(name, value) for name, value in options if not isinstance(value, dict)]
