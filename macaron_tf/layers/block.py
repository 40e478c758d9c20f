"""`Block`, one layer of an encoder or decoder, made of the sub-layers that its scheme lists."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import keras

from macaron_tf.errors import check_choice
from macaron_tf.layers.alibi import AlibiAttention
from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.config import BlockConfig, FeedForwardConfig, take_fields
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual
from macaron_tf.layers.rotary import RotaryAttention
from macaron_tf.layers.scheme import OPERATORS, Mix, spelled, steps_of
from macaron_tf.settings import SettingError, hints_of

# Attention layers by the setting `positions`.
_ATTENTIONS = {"rotary": RotaryAttention, "alibi": AlibiAttention}


class Block(Mixer):
    """One layer of an encoder or decoder: the sub-layers of `scheme`, each in a `Residual`.

    By default it is an encoder's block. With `causal` it is a language model's; with `causal` and
    `cross_attention` a decoder's, which attends the memory right after the token mixer, or where
    the scheme has `memory`.

    Args:
        config: the options, which can also be given by keyword:
            `MacaronBlock(num_heads=8, feed_forward_dim=2048)`.
        causal: whether each position sees only itself and earlier ones.
        cross_attention: whether to add attention to a memory.
        relative: whether `RelativeAttention` mixes the tokens.
        segments: whether relative attention also compares segments.
        rnn_step_size: k of a recurrent sub-layer, see `SwishRNN`.
        attention_window: window of self-attention, see `MultiHeadAttention`.
        first_norm: whether the first sub-layer has a norm.
        kernel_initializer: initializer of all matrices.
        output_initializer: initializer of the last matrix of each sub-layer (GPT-2 has its own);
            None: `kernel_initializer`.
        kwargs: the fields of `BlockConfig`, and Keras's own arguments.

    Class attributes:
        scheme: operators in order, with their step sizes and widths.
        attention: your own subclass of `MultiHeadAttention` for self-attention; None: the one that
            belongs to the configuration's `positions`.
        attends: whether tokens are mixed by attention, or by another operator that decodes token
            by token, so that the block also fits decoders and relative positions.
        fixed_length: whether there are weights for each position, up to `max_length`.

    Call arguments: `x (B, T, D)` and the others of `Mixer`; `memory (B, S, D)` with
    `cross_attention`. Returns `(B, T, D)`.
    """

    scheme: tuple[Mix, ...] = ()
    attention: type[MultiHeadAttention] | None = None
    attends = True
    fixed_length = False

    def __init__(
        self,
        config: BlockConfig | None = None,
        *,
        causal: bool = False,
        cross_attention: bool = False,
        relative: bool = False,
        segments: bool = False,
        rnn_step_size: int = 1,
        attention_window: int = 0,
        first_norm: bool = True,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        **kwargs,
    ):
        fields = take_fields(BlockConfig, kwargs)
        config = dataclasses.replace(config, **fields) if config else BlockConfig(**fields)
        super().__init__(autocast=False, **kwargs)  # as `Residual`
        self.config = config
        self._steps: list[list[tuple[str, str]]] = []  # operators and names of each step
        self.scheme = config.splitting(self.scheme)
        kind = type(self).__name__
        if not self.scheme:
            raise SettingError(f"block {kind} has no scheme: give it one, such as (Mix('tokens'),)")
        for operator, name, mixer, mix, beside in self._mixers():
            if not isinstance(mixer, Mixer):
                raise SettingError(
                    f"block {kind} mixes {operator} by a {type(mixer).__name__}: make that a "
                    "subclass of macaron_tf.layers.mixer.Mixer"
                )
            owner = next((one for _, one in self.sublayers if one.sublayer is mixer), None)
            if beside and owner is None:
                _, owner = self.steps[-1][0]
            options = config.options("dropout", "norm", "epsilon", "affine", "norm_type")
            if not first_norm and len(self._steps) == int(beside):
                options["norm"] = "none"
            residual = Residual(
                mixer,
                step_size=mix.step_size,
                solver=mix.solver,
                layer_norm=owner and owner.layer_norm,
                **options,
                name=name,
            )
            # As an attribute, Keras tracks it by its name: `block/feed_forward_0/...`.
            setattr(self, name, residual)
            if not beside:
                self._steps.append([])
            self._steps[-1].append((operator, name))
        if not any(mixer.keeps_state for mixer in self.mixers("tokens", "channels")):
            text = spelled(self.scheme) if config.scheme is None else config.scheme
            raise config.error(
                f"scheme={text!r}: no position sees another one: add tokens, or take a block "
                "whose channels are a recurrence, such as swish_rnn"
            )

    def token_mixer(self) -> Mixer:
        """Makes the mixer of positions. Blocks with another one than attention override it."""
        kind = {"causal": self.causal, "window": self.attention_window}
        if not self.relative:
            kind |= self.config.options("use_bias", "num_kv_heads")
            positions = self.config.positions
            usual = _ATTENTIONS.get(positions, MultiHeadAttention)
            layer = self.attention or usual
            if issubclass(layer, RotaryAttention):
                kind |= self.config.rotary_options(self.attention_window)
            if not issubclass(layer, usual):
                raise SettingError(
                    f"positions={positions!r} needs attention of class {usual.__name__}: make "
                    f"{layer.__name__} a subclass of it, or set positions='none'"
                )
            return self._attention(layer, **kind)
        return self._attention(
            RelativeAttention,
            **kind,
            # In Transformer-XL and XLNet, feed-forwards have biases and attention has none.
            use_bias=False,
            clamp_length=self.config.clamp_length,
            segments=self.segments,
        )

    def channel_mixer(self, feed_forward_dim: int, **changes) -> Mixer:
        """Makes the mixer of channels. Blocks without a feed-forward override it.

        Args:
            feed_forward_dim: inner width of this mixer.
            changes: options of the feed-forward that the scheme sets. Overrides take none: their
                blocks reject such schemes.
        """
        options = self.config.options(*hints_of(FeedForwardConfig))
        return FeedForward(
            **{**options, **changes, "feed_forward_dim": feed_forward_dim},
            **self._initializers(),
            name="feed_forward",
        )

    def _attention(self, layer=MultiHeadAttention, **kind) -> MultiHeadAttention:
        return layer(
            self.config.num_heads,
            self.config.head_dim,
            dropout=self.config.attention_dropout,
            scaled=self.config.scaled,
            **self._initializers(),
            name="attention",
            **kind,
        )

    def _initializers(self) -> dict[str, keras.initializers.Initializer]:
        """Fresh kernel and output initializers for one sub-layer."""
        output = self.output_initializer or self.kernel_initializer
        return {
            "kernel_initializer": self.kernel_initializer.clone(),
            "output_initializer": output.clone(),
        }

    def _mixers(self) -> Iterator[tuple[str, str, Mixer, Mix, bool]]:
        """Yields operator, name, mixer and `Mix` of each sub-layer, and whether it is a branch.

        The first branch of a step does not count as one.
        """
        placed = any(mix.operator == "memory" for mix in self.scheme)
        last: dict[str, Mixer] = {}  # the last mixer of each operator, for `again`
        beside = False
        every = ((step, mix) for step in steps_of(self.scheme) for mix in step)
        for number, (step, mix) in enumerate(every):
            beside, branches = beside and mix.beside, len(step) > 1
            if mix.operator == "tokens":
                mixer = last["tokens"] if mix.again else self.token_mixer()
                yield "tokens", f"{mixer.name}_{number}", mixer, mix, beside
                last["tokens"], beside = mixer, branches
            elif mix.operator == "channels":
                width = round(self.config.feed_forward_dim * mix.width)
                changes = {"activation": mix.activation} if mix.activation else {}
                if changes and type(self).channel_mixer is not Block.channel_mixer:
                    raise SettingError(
                        f"scheme: the channel mixer of block {type(self).__name__} takes no "
                        f"activation: leave out 'with {mix.activation}'"
                    )
                mixer = last["channels"] if mix.again else self.channel_mixer(width, **changes)
                yield "channels", f"feed_forward_{number}", mixer, mix, beside
                last["channels"], beside = mixer, branches
            if self.cross_attention and mix.operator == ("memory" if placed else "tokens"):
                options = self.config.options("use_bias", "num_kv_heads")
                mixer = last["memory"] if mix.again else self._attention(cross=True, **options)
                yield "memory", f"cross_attention_{number}", mixer, mix, beside
                last["memory"], beside = mixer, branches

    @property
    def steps(self) -> list[list[tuple[str, Residual]]]:
        """The sub-layers (see `sublayers`), grouped by step; parallel branches are one step."""
        return [[(operator, getattr(self, name)) for operator, name in s] for s in self._steps]

    @property
    def sublayers(self) -> list[tuple[str, Residual]]:
        """The operator and the residual layer of each sub-layer, in order."""
        return [one for step in self.steps for one in step]

    def mixers(self, *operators: str) -> list[Mixer]:
        """The mixers of these operators in order; without an argument, all mixers."""
        return [
            residual.sublayer
            for operator, residual in self.sublayers
            if operator in (operators or OPERATORS)
        ]

    @property
    def takes_bias(self) -> bool:
        return any(mixer.takes_bias for mixer in self.mixers("tokens"))

    @property
    def takes_queries(self) -> bool:
        return all(mixer.takes_queries for mixer in self.mixers())

    @property
    def can_prefill(self) -> bool:
        return all(mixer.can_prefill for mixer in self.mixers())

    def build(self, x_shape, memory_shape=None):
        for operator, residual in self.sublayers:
            if not residual.built:  # a block that shares it may have built it
                residual.build(x_shape, *([memory_shape] if operator == "memory" else []))

    def mix(self, x, context: Context, state=None):
        # Cross-attention reads the memory's keys, which do not change. Other mixers continue from
        # their states, one per evaluation.
        held, memory_keys = iter(state or ()), iter(context.memory_keys or ())
        across = context.replace(attention_mask=None, bias=None)  # both are for self-attention
        kept = []

        def attend(mixer, keys, y):
            return mixer.mix(y, across, keys)[0]

        def go_on(mixer, y):
            before = next(held, None) if mixer.keeps_state else None
            if context.packing is None or mixer.takes_packed:
                y, after = mixer.mix(y, context, before)
            else:
                rows = context.packing.padded(y)  # (N, D) -> (B, T, D)
                rows, after = mixer.mix(rows, context.replace(packing=None), before)
                y = context.packing.packed(rows)
            if after is not None:
                kept.append(after)
            return y

        for step in self.steps:
            before, (_, first) = x, step[0]
            given = first.start(before, context.training)
            for operator, residual in step:
                if operator == "memory":
                    mix = functools.partial(attend, residual.sublayer, next(memory_keys, None))
                else:
                    mix = functools.partial(go_on, residual.sublayer)
                own = residual.layer_norm is first.layer_norm
                y = given if own else residual.start(before, context.training)
                x = residual.move(x, before, y, mix, context.training)
            x = first.end(x, context.training)
        return x, kept

    def _evaluated(self) -> Iterator[Mixer]:
        """The mixers that keep a state, each repeated for every evaluation in its step."""
        for operator, residual in self.sublayers:
            if operator != "memory" and residual.sublayer.keeps_state:
                yield from [residual.sublayer] * residual.evaluations

    def init_cache(self, batch_size, beams: int, room: int | None) -> list:
        return [mixer.init_cache(batch_size, beams, room) for mixer in self._evaluated()]

    def init_memory(self, batch_size, length: int) -> list:
        return [mixer.init_memory(batch_size, length) for mixer in self._evaluated()]

    def project_memory(self, memory) -> list:
        """Keys and values of the memory `(B, S, D)`, for each cross-attention."""
        return [mixer.project_memory(memory) for mixer in self.mixers("memory")]

    def share(self, other: "Block", operators: Sequence[str] = OPERATORS) -> None:
        """Replaces sub-layers, norms included, by those of another block. Call it before `build`.

        Keras then tracks, counts and saves the shared weights once. The config does not record
        sharing.

        Args:
            other: a block with equal options.
            operators: operators whose sub-layers are shared: of `"tokens"`, `"memory"`,
                `"channels"`.

        References: Lan et al. 2020 (ALBERT), section 3.1.
        """
        for operator in operators:
            check_choice("operators", operator, OPERATORS)
        if self.built:
            raise ValueError(f"{self.name} is built already: call share before build")
        for operator, name in itertools.chain(*self._steps):
            if operator in operators:
                own, shared = getattr(self, name), getattr(other, name, None)
                if shared is None or _options(own) != _options(shared):
                    raise ValueError(
                        f"{name} differs between {self.name} and {other.name}: give both blocks "
                        "the same options"
                    )
                # Keras would still track the weights of a layer whose attribute is replaced.
                self._tracker.untrack(own)
                setattr(self, name, shared)

    def copy_from(self, other: "Block") -> None:
        """Copies the weights of another block's sub-layers; those that it lacks are left unchanged.

        This lets a decoder's block start from an encoder's, with newly initialized cross-attention.
        Both blocks are built, and their options are equal except `causal` and `cross_attention`.
        """
        for operator, name in itertools.chain(*self._steps):
            if operator != "memory" or other.cross_attention:
                getattr(self, name).set_weights(getattr(other, name).get_weights())


def _options(residual: Residual) -> list[tuple]:
    """The options that two residual layers must have in common to be shared."""
    options = [*residual.get_config().items(), *residual.sublayer.get_config().items()]
    # Without objects such as initializers, whose configs Keras numbers while it loads a model.
    return [(name, value) for name, value in options if not isinstance(value, dict)]
