"""`Block`, one layer of an encoder or decoder, composed of the sub-layers in a splitting scheme."""

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
from macaron_tf.layers.mixture_of_experts import MixtureOfExperts
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.layers.residual import Residual
from macaron_tf.layers.rotary import RotaryAttention
from macaron_tf.layers.scheme import OPERATORS, SOLVERS, Mix, scheme_text, steps_of
from macaron_tf.settings import SettingError, hints_of

# Attention layers for the values of the setting `positions`.
_ATTENTIONS = {"rotary": RotaryAttention, "alibi": AlibiAttention}
# Names of the sub-layers of an operator, if they are not those of its mixer.
_NAMES = {"channels": "feed_forward", "memory": "cross_attention"}


class Block(Mixer):
    """One layer of an encoder or decoder, in which a `Residual` wraps each sub-layer of a scheme.

    By default, the block belongs to an encoder. With `causal`, the block belongs to a causal
    language model. With `causal` and `cross_attention`, the block belongs to the decoder of an
    encoder-decoder. Cross-attention follows each token mixer, unless the operator `memory` in the
    scheme sets another position.

    Args:
        config: settings of the block. `None` means that `kwargs` contains the settings:
            `MacaronBlock(num_heads=8, feed_forward_dim=2048)`.
        causal: whether each position sees only itself and earlier positions.
        cross_attention: whether to add cross-attention to a memory.
        segments: whether relative attention also compares segments.
        rnn_step_size: step size of a recurrent sub-layer in positions (see `SwishRNN`).
        attention_window: window of self-attention in positions (see `MultiHeadAttention`).
        first_norm: whether the first sub-layer has a norm.
        output_initializer: initializer of the last matrix in each sub-layer. GPT-2 initializes this
            matrix with a smaller standard deviation. `None` means `kernel_initializer`.
        kwargs: fields of `BlockConfig`, which replace the fields of `config`, and Keras's own
            arguments.

    Class attributes:
        scheme: operators in order, each with a step size and a width.
        attention: subclass of `MultiHeadAttention` for self-attention. `None` means the class that
            matches the setting `positions`.
        attends: whether the token mixer is attention or another operator that decodes token by
            token. Encoder-decoders, Transformer-XL's relative positions and sliding-window
            attention require such blocks.
        fixed_length: whether the block has weights for each position, up to `max_length`.

    Call arguments:
        memory: `(B, S, D)`, required with `cross_attention`.

    Other call arguments are the same as in `Mixer`.
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
        super().__init__(autocast=False, **kwargs)  # see `Residual`
        self.config = config
        self._steps: list[list[tuple[str, str]]] = []  # (operator, name) of the sub-layers per step
        self.scheme = config.splitting(self.scheme)
        class_name = type(self).__name__
        if not self.scheme:
            raise SettingError(f"{class_name} has no scheme: set one, such as (Mix('tokens'),)")
        for operator, name, mixer, mix, beside in self._mixers():
            if not isinstance(mixer, Mixer):
                raise SettingError(f"{class_name}'s {operator} are mixed by {mixer!r}, no Mixer")
            owners = [residual for _, residual in self.sublayers if residual.sublayer is mixer]
            if beside and not owners and config.norm != "output":
                owners = [self.steps[-1][0][1]]
            options = config.options("dropout", "norm", "epsilon", "affine", "norm_type")
            if not first_norm and len(self._steps) == int(beside):
                options["norm"] = "none"
            options |= {"step_size": mix.step_size, "solver": mix.solver, "name": name}
            layer_norm = owners[0].layer_norm if owners else None
            residual = Residual(mixer, layer_norm=layer_norm, **options)
            # Keras tracks an attribute under its name: `block/feed_forward_0/...`.
            setattr(self, name, residual)
            if not beside:
                self._steps.append([])
            self._steps[-1].append((operator, name))
        if not any(mixer.keeps_state for mixer in self.mixers("tokens", "channels")):
            text = config.scheme or scheme_text(self.scheme)
            raise config.error(f"scheme={text!r} lets no position see another: add tokens")
        self.takes_bias = any(mixer.takes_bias for mixer in self.mixers("tokens"))
        self.takes_queries = all(mixer.takes_queries for mixer in self.mixers())
        self.can_prefill = all(mixer.can_prefill for mixer in self.mixers())

    def token_mixer(self) -> Mixer:
        """Creates the token mixer, by default self-attention. Subclasses can override it."""
        options = {"causal": self.causal, "window": self.attention_window}
        if not self.relative:
            options |= self.config.options("use_bias", "num_kv_heads", "qk_norm", "epsilon")
            positions = self.config.positions
            default_class = _ATTENTIONS.get(positions, MultiHeadAttention)
            attention_class = self.attention or default_class
            if issubclass(attention_class, RotaryAttention):
                local = self.attention_window and self.config.local_rotary_base
                options["rotary_base"] = local or self.config.rotary_base
                options |= self.config.options("rotary_dim", "rotary_scaling")
            if not issubclass(attention_class, default_class):
                raise SettingError(f"positions={positions!r} needs a {default_class.__name__}")
            return self._attention(attention_class, **options)
        # Transformer-XL and XLNet have biases in feed-forward layers, but not in attention.
        options |= {"use_bias": False, "segments": self.segments}
        options |= self.config.options("clamp_length")
        return self._attention(RelativeAttention, **options)

    def channel_mixer(self, feed_forward_dim: int, **changes) -> Mixer:
        """Creates a channel mixer, by default a feed-forward layer. Subclasses can override this.

        An override may omit `changes` (options such as the activation), which the block then
        rejects.
        """
        options = self.config.options(*hints_of(FeedForwardConfig)) | changes
        options |= {"feed_forward_dim": feed_forward_dim, "name": "feed_forward"}
        if self.config.num_experts is None:
            return FeedForward(**options, **self._initializers())
        del options["use_bias"]
        options |= self.config.options("num_experts", "experts_per_token", "router_loss")
        return MixtureOfExperts(**options, **self._initializers())

    def _attention(self, attention_class=MultiHeadAttention, **options) -> MultiHeadAttention:
        options |= self.config.options("num_heads", "head_dim", "scaled", "scale_dim")
        options |= self._initializers()
        dropout = self.config.attention_dropout
        return attention_class(dropout=dropout, **options, name="attention")

    def _initializers(self) -> dict[str, keras.initializers.Initializer]:
        """Returns new clones of the kernel and output initializers for one sub-layer."""
        kernel, output = self.kernel_initializer, self.output_initializer or self.kernel_initializer
        return {"kernel_initializer": kernel.clone(), "output_initializer": output.clone()}

    def _mixers(self) -> Iterator[tuple[str, str, Mixer, Mix, bool]]:
        """Yields operator, name, mixer, `Mix` of each sub-layer; True in later branches."""
        places_memory = any(mix.operator == "memory" for mix in self.scheme)
        last: dict[str, Mixer] = {}  # the latest mixer of each operator, for `again`
        beside = False
        steps_and_mixes = ((step, mix) for step in steps_of(self.scheme) for mix in step)
        for index, (step, mix) in enumerate(steps_and_mixes):
            beside, operators = beside and mix.beside, [mix.operator]
            if mix.operator == "tokens" and not places_memory:
                operators.append("memory")
            for operator in operators:
                if operator == "memory" and not self.cross_attention:
                    continue
                if mix.again:
                    mixer = last[operator]
                elif operator == "tokens":
                    mixer = self.token_mixer()
                elif operator == "memory":
                    options = self.config.options("use_bias", "num_kv_heads")
                    mixer = self._attention(cross=True, **options)
                else:
                    changes = {"activation": mix.activation} if mix.activation else {}
                    if changes and type(self).channel_mixer is not Block.channel_mixer:
                        raise SettingError(
                            f"{type(self).__name__} takes no activation: remove 'with'"
                        )
                    feed_forward_dim = round(self.config.feed_forward_dim * mix.width)
                    mixer = self.channel_mixer(feed_forward_dim, **changes)
                yield operator, f"{_NAMES.get(operator, mixer.name)}_{index}", mixer, mix, beside
                last[operator], beside = mixer, len(step) > 1

    @property
    def steps(self) -> list[list[tuple[str, Residual]]]:
        """List of steps. A step is a list of (operator, residual layer) pairs, one per branch."""
        return [[(operator, getattr(self, name)) for operator, name in s] for s in self._steps]

    @property
    def sublayers(self) -> list[tuple[str, Residual]]:
        """List of (operator, residual layer) pairs for all sub-layers, in order."""
        return [pair for step in self.steps for pair in step]

    def mixers(self, *operators: str) -> list[Mixer]:
        """Returns the mixers of the operators, such as `"tokens"`, in order. No name means all."""
        operators = operators or OPERATORS
        return [residual.sublayer for name, residual in self.sublayers if name in operators]

    def build(self, x_shape, memory_shape=None):
        for operator, residual in self.sublayers:
            if not residual.built:  # another block may share and have built the sub-layer
                residual.build(x_shape, *([memory_shape] if operator == "memory" else []))

    def mix(self, x, context: Context, state=None):
        # Cross-attention reads the keys of the memory, which do not change. Each other mixer
        # continues from its own state. A mixer that the solver evaluates several times has one
        # state per evaluation.
        states, memory_keys = iter(state or ()), iter(context.memory_keys or ())
        # The attention mask and the bias apply only to self-attention.
        cross_context = dataclasses.replace(context, attention_mask=None, bias=None)
        new_states = []

        def attend(mixer, keys, y):
            return mixer.mix(y, cross_context, keys)[0]

        def mix_with_state(mixer, y):
            old_state = next(states, None) if mixer.keeps_state else None
            if context.packing is None or mixer.takes_packed:
                y, new_state = mixer.mix(y, context, old_state)
            else:
                rows = context.packing.pad(y)  # (N, D) -> (B, T, D)
                unpacked = dataclasses.replace(context, packing=None)
                rows, new_state = mixer.mix(rows, unpacked, old_state)
                y = context.packing.pack(rows)
            if new_state is not None:
                new_states.append(new_state)
            return y

        for step in self.steps:
            step_input, (_, first) = x, step[0]
            shared_input = first.normalized(step_input, "pre", context.training)
            for operator, residual in step:
                if operator == "memory":
                    mix = functools.partial(attend, residual.sublayer, next(memory_keys, None))
                else:
                    mix = functools.partial(mix_with_state, residual.sublayer)
                shares_norm = residual.layer_norm is first.layer_norm
                y = shared_input
                if not shares_norm:
                    y = residual.normalized(step_input, "pre", context.training)
                x = residual.move(x, step_input, y, mix, context.training)
            x = first.normalized(x, "post", context.training)
        return x, new_states

    def _evaluated_mixers(self) -> Iterator[Mixer]:
        """Yields each mixer that keeps a state, except cross-attention, once per evaluation."""
        for operator, residual in self.sublayers:
            if operator != "memory" and residual.sublayer.keeps_state:
                yield from [residual.sublayer] * len(SOLVERS[residual.solver])

    def init_cache(self, batch_size, beams: int, capacity: int | None) -> list:
        return [mixer.init_cache(batch_size, beams, capacity) for mixer in self._evaluated_mixers()]

    def init_memory(self, batch_size, length: int) -> list:
        return [mixer.init_memory(batch_size, length) for mixer in self._evaluated_mixers()]

    def project_memory(self, memory) -> list:
        """Computes one pair of keys and values of the memory `(B, S, D)` per cross-attention."""
        return [mixer.project_memory(memory) for mixer in self.mixers("memory")]

    def share(self, other: "Block", operators: Sequence[str] = OPERATORS) -> None:
        """Replaces sub-layers and norms by those of another block, before this block's `build`.

        Keras then tracks, counts and saves the shared weights once. The config does not record the
        sharing.

        References: Lan et al. 2020 (ALBERT), section 3.1.
        """
        for operator in operators:
            check_choice("operators", operator, OPERATORS)
        for operator, name in itertools.chain(*self._steps):
            if operator in operators:
                replaced, shared = getattr(self, name), getattr(other, name, None)
                if shared is None or _options(replaced) != _options(shared):
                    raise ValueError(f"{name} differs between {self.name} and {other.name}")
                # Without `untrack`, Keras would keep tracking the weights of the replaced layer.
                self._tracker.untrack(replaced)
                setattr(self, name, shared)

    def copy_from(self, other: "Block") -> None:
        """Copies the weights of a built block, whose `causal` and `cross_attention` may differ.

        Without cross-attention there, the cross-attention here keeps its weights: an encoder block
        can initialize a decoder block.
        """
        for operator, name in itertools.chain(*self._steps):
            if operator != "memory" or other.cross_attention:
                getattr(self, name).set_weights(getattr(other, name).get_weights())


def _options(residual: Residual) -> list[tuple]:
    """Returns (name, value) pairs of a residual layer and its sub-layer; equal ones can share."""
    options = [*residual.get_config().items(), *residual.sublayer.get_config().items()]
    # Objects such as initializers are left out, because Keras numbers their configs when loading a
    # model.
    return [(name, value) for name, value in options if not isinstance(value, dict)]
