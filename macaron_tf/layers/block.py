"""One layer of an encoder or decoder, put together by its scheme."""

import inspect
from collections.abc import Iterator, Sequence

import keras

from macaron_tf.checks import check_choice
from macaron_tf.layers.attention import MultiHeadAttention, all_of
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual
from macaron_tf.layers.scheme import OPERATORS, Mix


class CachedSteps:
    """The part of a `Block` that goes on from what its sub-layers keep of the past."""

    attends: bool
    _sublayers: list[tuple[str, Residual]]

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

    def step(self, x, index, context, cache, memory_mask=None, position_bias=None):
        """One token of each hypothesis through the block.

        Args:
            x: `(B K, D)` or `(B, K, D)`, the new tokens.
            index: scalar int32 or None, see `MultiHeadAttention.step`.
            context: from `start`; `cache`: from `empty_cache` or the last step.
            memory_mask: `(B, S)` boolean.
            position_bias: see `MultiHeadAttention.step`.

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
                bias = self._biases(operator, position_bias)
                x, held = residual.step(x, index, next(cache), **bias)
                new_cache.append(held)
            else:
                x = residual(x, training=False)
        return x, new_cache

    @property
    def reads(self) -> bool:
        """Whether `read` can do it: every sub-layer with a cache can, and there is no memory."""
        if any(operator == "memory" for operator, _ in self._sublayers):
            return False
        kept = [one.sublayer for _, one in self._sublayers if hasattr(one.sublayer, "empty_cache")]
        return all(hasattr(sublayer, "read") for sublayer in kept)

    def read(self, x, index, cache, position_bias=None):
        """The next L tokens of each text through the block, as L steps bring them.

        Args:
            x: `(B, L, D)`.
            index: of the first of them, or None; position_bias: see `MultiHeadAttention.step`.
            cache: from `empty_cache` or the last step, of K = 1.

        Returns:
            `(B, L, D)`, and the new cache.

        Raises:
            ValueError: as `empty_cache`.
        """
        cache, new_cache = iter(cache), []
        for operator, residual in self._sublayers:
            if self._remembers(operator, residual):
                bias = self._biases(operator, position_bias)
                x, held = residual.read(x, index, next(cache), **bias)
                new_cache.append(held)
            else:
                x = residual(x, training=False)
        return x, new_cache

    def _biases(self, operator: str, position_bias) -> dict:
        """What only scores take."""
        return {"position_bias": position_bias} if operator == "tokens" and self.attends else {}


class SegmentSteps:
    """The part of a `Block` that goes on from what its sub-layers keep of earlier segments."""

    _sublayers: list[tuple[str, Residual]]

    def empty_past(self, batch_size, memory_length: int) -> list:
        """What is kept before a text: of each sub-layer that looks back, `(B, ...)`.

        Args:
            batch_size: B.
            memory_length: M, positions that attention keeps.

        Raises:
            ValueError: the token mixer keeps nothing.
        """
        return [
            residual.sublayer.empty_past(batch_size, memory_length)
            for operator, residual in self._sublayers
            if self._carries(operator, residual)
        ]

    def share_biases(self, other: RelativeAttention | None) -> RelativeAttention | None:
        """Takes the u and v of another block's attention, before `build`.

        Args:
            other: whose; None where this block is the first.

        Returns:
            Whose the next block takes.
        """
        for operator, residual in self._sublayers:
            if operator == "tokens" and isinstance(residual.sublayer, RelativeAttention):
                if other is not None:
                    residual.sublayer.share_biases(other)
                other = other or residual.sublayer
        return other

    def _carries(self, operator: str, residual: Residual) -> bool:
        """Whether a sub-layer keeps something of a segment; raises where it should and cannot."""
        carries = hasattr(residual.sublayer, "with_past")
        if operator == "tokens" and not carries:
            raise ValueError(
                f"a memory of earlier segments with a {type(self).__name__} is not supported: "
                f"{residual.name} keeps none; set positions='transformer_xl'"
            )
        return carries

    def with_past(
        self,
        x,
        past,
        past_mask=None,
        mask=None,
        attention_mask=None,
        segment_ids=None,
        training=None,
    ):
        """The next segment of a text through the block.

        Args:
            x: `(B, L, D)`.
            past: from `empty_past` or the last segment; past_mask: `(B, M)` boolean, which
                positions of it there are.
            mask: `(B, L)` boolean, False at padding. attention_mask, segment_ids: see
                `RelativeAttention.with_past`.

        Returns:
            `(B, L, D)` and the new past.

        Raises:
            ValueError: as `empty_past`.
        """
        past, new = iter(past), []
        for operator, residual in self._sublayers:
            if not self._carries(operator, residual):
                x = residual(x, training=training)
                continue
            arguments = {"mask": mask}
            if operator == "tokens":
                arguments |= {
                    "past_mask": past_mask,
                    "attention_mask": attention_mask,
                    "segment_ids": segment_ids,
                }
            x, held = residual.with_past(x, next(past), training=training, **arguments)
            new.append(held)
        return x, new


class TwoStreams:
    """The part of a `Block` that takes a second stream through the same weights.

    Mixers of channels must see one position alone: a recurrence would tell a query what its own
    token is.
    """

    _sublayers: list[tuple[str, Residual]]

    def two_streams(
        self,
        content,
        query,
        past,
        past_mask,
        mask,
        content_mask,
        query_mask,
        places,
        segment_ids=None,
        training=None,
    ):
        """The next segment of a text through the block.

        Args:
            content: h, `(B, L, D)`. query: g, `(B, P, D)`, of P positions that are to be guessed.
            past, past_mask, mask, segment_ids: as of `SegmentSteps.with_past`.
            content_mask, query_mask: `(B, L, L)` boolean, what each position sees of h.
            places: `(B, P, L)`, one-hot, where the queries stand.

        Returns:
            h, g and the new past.

        Raises:
            ValueError: a mixer that sees other positions in another way.

        References: Yang et al. 2019 (XLNet), section 2.3.
        """
        past, new = iter(past), []
        for operator, residual in self._sublayers:
            mixer = residual.sublayer
            if operator == "channels" and isinstance(mixer, FeedForward):
                content = residual(content, training=training)
                query = residual(query, training=training)
            elif operator == "tokens" and isinstance(mixer, RelativeAttention):
                content, query, held = _attended(
                    residual,
                    content,
                    query,
                    next(past),
                    {"past_mask": past_mask, "mask": mask},
                    (content_mask, query_mask),
                    places,
                    {"segment_ids": segment_ids, "training": training},
                )
                new.append(held)
            else:
                raise ValueError(
                    f"two streams with a {type(self).__name__} are not possible: {residual.name} "
                    "would tell a query its own token; take transformer or macaron blocks"
                )
        return content, query, new


def _attended(residual, content, query, past, masks, streams, places, options):
    """Both streams through attention to the contents, and what it keeps of them."""
    attention: RelativeAttention = residual.sublayer
    training, segment_ids = options["training"], options["segment_ids"]
    keys = new_past = None

    def of_content(y):
        nonlocal keys, new_past
        keys = attention.keys(y, past, **masks, segment_ids=segment_ids)
        new_past = attention.new_past(y, past)
        return attention.attend(y, keys, streams[0], **options)

    content = residual.around(content, of_content, training)
    query = residual.around(
        query, lambda y: attention.attend(y, keys, streams[1], places=places, **options), training
    )
    return content, query, new_past


# Every argument that is a plain value.
_PLAIN = (
    "num_heads",
    "feed_forward_dim",
    "causal",
    "cross_attention",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "norm",
    "epsilon",
    "affine",
    "norm_type",
    "use_bias",
    "gated",
    "head_dim",
    "scaled",
    "relative",
)


class Block(CachedSteps, SegmentSteps, TwoStreams, keras.layers.Layer):
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
        epsilon, affine, norm_type: of the norms, see `normalization`.
        use_bias: whether attention and feed-forward have biases.
        gated: whether the feed-forward is, see `FeedForward`.
        head_dim: d of an attention head; D / H by default.
        scaled: whether attention scores are divided by sqrt(d).
        relative: options of `RelativeAttention`, `clamp_length` and `segments`, which then mixes
            the tokens; None = it does not.
        kernel_initializer: of all matrices.
        output_initializer: of the last matrix of each sub-layer, where it differs (GPT-2's).

    Call arguments: `x (B, T, D)`; `memory (B, S, D)` with `cross_attention`; `attention_mask` over
    x, `(B, T)`, `(B, T, T)` or `(B, H, T, T)`, and `memory_mask (B, S)`, both boolean with True =
    attend; `mask` or `x_mask (B, T)`, Keras's own padding mask of x, which counts besides
    `attention_mask`; `attention_bias`, added to the scores of the token mixer, that broadcasts to
    `(B, H, T, T)`; `segment_ids (B, T)` int, see `RelativeAttention`. Returns `(B, T, D)`.

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
        norm_type: str = "layer",
        use_bias: bool = True,
        gated: bool = False,
        head_dim: int | None = None,
        scaled: bool = True,
        relative: dict | None = None,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
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
        self.norm_type = norm_type
        self.use_bias = use_bias
        self.gated = gated
        self.head_dim = head_dim
        self.scaled = scaled
        self.relative = None if relative is None else dict(relative)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self._names = []
        for operator, name, mixer, step_size in self._mixers():
            residual = Residual(
                mixer,
                step_size=step_size,
                dropout=dropout,
                norm=norm,
                epsilon=epsilon,
                affine=affine,
                norm_type=norm_type,
                dtype=self.dtype_policy,
                name=name,
            )
            # Tracked by Keras under its own name: weight paths read `block/feed_forward_0/...`.
            setattr(self, name, residual)
            self._names.append((operator, name))

    def token_mixer(self) -> keras.layers.Layer:
        """Makes the operator between positions; a block with another one overrides this."""
        if self.relative is None:
            return self._attention(causal=self.causal)
        return self._attention(RelativeAttention, causal=self.causal, **self.relative)

    def channel_mixer(self, feed_forward_dim: int) -> keras.layers.Layer:
        """Makes the operator within a position; a block with another one overrides this."""
        return FeedForward(
            feed_forward_dim,
            activation=self.activation,
            activation_dropout=self.activation_dropout,
            gated=self.gated,
            use_bias=self.use_bias,
            **self._initializers(),
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _attention(self, layer=MultiHeadAttention, **kind) -> MultiHeadAttention:
        return layer(
            self.num_heads,
            self.head_dim,
            dropout=self.attention_dropout,
            # Transformer-XL's and XLNet's have none, their feed-forwards have.
            use_bias=self.use_bias and layer is MultiHeadAttention,
            scaled=self.scaled,
            **self._initializers(),
            dtype=self.dtype_policy,
            name="attention",
            **kind,
        )

    def _initializers(self) -> dict[str, keras.initializers.Initializer]:
        """Those of a sub-layer, its own objects."""
        output = self.output_initializer or self.kernel_initializer
        return {
            "kernel_initializer": self.kernel_initializer.clone(),
            "output_initializer": output.clone(),
        }

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

    def copy_from(self, other: "Block") -> None:
        """Takes the weights of another block's sub-layers; one that it has not keeps its own.

        A decoder's block so starts from an encoder's, its attention to the memory anew.

        Args:
            other: built, as this one, with equal options but for `causal` and `cross_attention`.
        """
        for operator, name in self._names:
            if operator != "memory" or other.cross_attention:
                getattr(self, name).set_weights(getattr(other, name).get_weights())

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
        segment_ids=None,
        training=None,
    ):
        own = {
            "attention_mask": attention_mask,
            "attention_bias": attention_bias,
            "mask": all_of(mask, x_mask),
            "segment_ids": segment_ids,
        }
        of_memory = {"memory": memory, "memory_mask": memory_mask}
        for operator, residual in self._sublayers:
            offered = of_memory if operator == "memory" else own
            taken = inspect.signature(residual.sublayer.call).parameters
            arguments = {name: value for name, value in offered.items() if name in taken}
            x = residual(x, **arguments, training=training)
        return x

    def compute_output_shape(self, x_shape, memory_shape=None):
        return tuple(x_shape)

    def get_config(self):
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in _PLAIN},
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "output_initializer": keras.initializers.serialize(self.output_initializer)
            if self.output_initializer
            else None,
        }


def _options(residual: Residual) -> list[tuple]:
    """What must be equal in two residuals for one to take the other's place."""
    options = [*residual.get_config().items(), *residual.sublayer.get_config().items()]
    # Without objects, such as initializers: Keras numbers them while it loads a model.
    return [(name, value) for name, value in options if not isinstance(value, dict)]
