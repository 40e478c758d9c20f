"""Gated DeltaNet, a recurrent token mixer whose state is a matrix for each head."""

import math

import keras
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.kernels.delta_rule import delta_rule, delta_step
from macaron_tf.layers.mixer import Context, Mixer

_NORM_EPSILON = 1e-6  # of queries and keys, as in the released code
_KERNEL = 4  # positions of the convolution


class GatedDeltaNet(Mixer):
    """Token mixer with the gated delta rule: `(RMSNorm(o) * silu(x W_z)) W_o`.

    o is the output of `delta_rule` for queries, keys and values `silu(conv(x W))`, with a causal
    depthwise convolution over 4 positions. Queries and keys have norm 1, and queries are divided by
    sqrt(d_k). The decay is `exp(-A softplus(x W_a + b))` and the strength of an update
    `sigmoid(x W_b)`, each one number per head.

    Args:
        num_heads: number of heads H.
        head_dim: width d_v of the values of a head. `None` means D / H. Keys have half of this
            width, so that the layer has about as many parameters as attention.
        causal: whether no position sees later positions. Otherwise, the second half of the heads
            reads the sequence from its end.
        kernel_initializer: initializer of the matrices. Query and key, value and gate, and decay
            and strength form fused matrices, and the initializer uses their fan-out.
        output_initializer: initializer of W_o. `None` means `kernel_initializer`.
        epsilon: number added to the mean square in the norm of o.

    Call arguments:
        mask: boolean `(B, T)`, False at padding. Padding does not change the state.

    The state is a pair: the last 3 inputs of the convolution, and S of `delta_rule`. For K
    hypotheses in decoding, they are `(B, K, 3, C)` and `(B, K, H, d_k, d_v)`. No gradient flows
    through the state.

    References: Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", eq. 10
    and figure 1.
    """

    reads = ("head_dim", "scaled_outputs")
    takes_cache_mask = True  # the state has no position axis

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        causal: bool = False,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        epsilon: float = 1e-5,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        if not causal:
            check_divisible("num_heads", num_heads, "the two directions", 2)

    def build(self, x_shape):
        heads, divided = self.num_heads, ("hidden_dim", x_shape[-1], "num_heads", self.num_heads)
        self._width = self.head_dim or check_divisible(*divided)
        self._key_width = check_divisible("head_dim", self._width, "the keys' part", 2)
        widths = {"query_key": self._key_width, "value_gate": self._width, "rates": 1}
        options = {"use_bias": False, "axes": ("embed", "heads"), "parts": 2}
        self.query_key, self.value_gate, self.rates = (
            self.dense_part(name, x_shape, 2 * heads * width, **options)
            for name, width in widths.items()
        )
        # As in PyTorch's convolutions, uniform within 1 / sqrt(4).
        initializer = keras.initializers.RandomUniform(-0.5, 0.5)
        shape = (_KERNEL, heads, 2 * self._key_width + self._width)
        self.filter = self.add_weight(shape, initializer, name="filter", decays=False)
        # Autocast is off because decay and norm are computed in float32.
        options = {"autocast": False, "decays": False}
        self.log_a = self.add_weight((heads,), _initial_log_a, name="log_a", **options)
        self.step_bias = self.add_weight((heads,), _initial_step_bias, name="step_bias", **options)
        self.scale = self.add_weight((self._width,), "ones", name="scale", **options)
        initializer = (self.output_initializer or self.kernel_initializer).clone()
        arguments = ("output", (*x_shape[:-1], heads * self._width), x_shape[-1], initializer)
        self.output_projection = self.dense_part(*arguments, ("heads", "embed"), use_bias=False)

    def mix(self, x, context: Context, state=None):
        tokens = x if len(x.shape) == 3 else x[:, None]  # (B, T, D)
        batch, length, _ = ops.shape(tokens)
        value, gate = (
            ops.reshape(part, (batch, length, self.num_heads, self._width))
            for part in ops.split(self.value_gate(tokens), 2, axis=-1)
        )
        # (B, T, 2 H d_k) -> (B, T, 2, H, d_k)
        shape = (batch, length, 2, self.num_heads, self._key_width)
        query_key = ops.reshape(self.query_key(tokens), shape)
        # (B, T, H, c), with c = 2 d_k + d_v
        inputs = ops.concatenate([query_key[:, :, 0], query_key[:, :, 1], value], axis=-1)
        decay, strength = self._decay_and_strength(tokens)  # (B, T, H)
        if context.mask is not None:
            inputs, decay, strength = (
                ops.where(ops.reshape(context.mask, (batch, length, *[1] * (y.ndim - 2))), y, 0)
                for y in (inputs, decay, strength)
            )
        before, memory = self.init_memory(batch, 0) if state is None else map(_flat, state)
        inputs = ops.concatenate([ops.cast(before, inputs.dtype), self._turned(inputs)], axis=1)
        columns = self._queries_keys_values(inputs, length)
        # (B, T, H) -> (B, H, T)
        rates = [ops.swapaxes(self._turned(y), 1, 2) for y in (decay, strength)]
        if tokens.shape[1] == 1:
            # Without the axis of T = 1 positions.
            y, memory = delta_step(*(y[:, :, 0] for y in (*columns, *rates)), memory)
            y = y[:, :, None]
        else:
            y, memory = delta_rule(*columns, *rates, memory)  # (B, H, T, d_v)
        y = self._turned(ops.swapaxes(y, 1, 2))  # (B, T, H, d_v)
        y = y * ops.rsqrt(ops.mean(ops.square(y), axis=-1, keepdims=True) + self.epsilon)
        y = y * self.scale * ops.silu(ops.cast(gate, "float32"))
        y = ops.cast(ops.reshape(y, (batch, length, -1)), self.compute_dtype)
        y = self.output_projection(y if len(x.shape) == 3 else y[:, 0])
        if state is None:
            return y, None
        new = (ops.cast(inputs[:, 1 - _KERNEL :], "float32"), memory)
        return y, tuple(
            ops.reshape(ops.stop_gradient(part), ops.shape(old))
            for part, old in zip(new, state, strict=True)
        )

    def _decay_and_strength(self, tokens):
        """Returns the logarithm of the decay and the strength of the update, `(B, T, H)`."""
        step, strength = ops.split(ops.cast(self.rates(tokens), "float32"), 2, axis=-1)
        return -ops.exp(self.log_a) * ops.softplus(step + self.step_bias), ops.sigmoid(strength)

    def _turned(self, x):
        """Reverses `x (B, T, H, ...)` along T in the heads that read from the end."""
        if self.causal:
            return x
        forward = self.num_heads // 2
        return ops.concatenate([x[:, :, :forward], ops.flip(x[:, :, forward:], 1)], axis=2)

    def _queries_keys_values(self, inputs, length):
        """Convolves `(B, 3 + T, H, c)`, and returns q, k `(B, H, T, d_k)` and v in float32."""
        batch, _, heads, width = ops.shape(inputs)
        taps = ops.reshape(ops.cast(self.filter, inputs.dtype), (_KERNEL, heads * width, 1))
        y = ops.depthwise_conv(ops.reshape(inputs, (batch, -1, heads * width)), taps)
        y = ops.reshape(ops.silu(y), (batch, length, heads, width))  # (B, T, H c) -> (B, T, H, c)
        y = ops.swapaxes(ops.cast(y, "float32"), 1, 2)  # (B, H, T, c)
        query, key, value = ops.split(y, [self._key_width, 2 * self._key_width], axis=-1)
        query, key = (
            y * ops.rsqrt(ops.sum(ops.square(y), axis=-1, keepdims=True) + _NORM_EPSILON)
            for y in (query, key)
        )
        return query / math.sqrt(self._key_width), key, value

    def _state_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        width = 2 * self._key_width + self._width
        memory = (self.num_heads, self._key_width, self._width)
        return (_KERNEL - 1, self.num_heads, width), memory

    def init_memory(self, batch_size, length: int):
        return tuple(ops.zeros((batch_size, *shape), "float32") for shape in self._state_shapes())

    def init_cache(self, batch_size, beams: int, capacity: int | None):
        shapes = self._state_shapes()
        return tuple(ops.zeros((batch_size, beams, *shape), "float32") for shape in shapes)


def _flat(part):
    """Reshapes a part of the state from `(B, K, ...)` to `(B K, ...)`, without a gradient."""
    return ops.reshape(ops.stop_gradient(part), (-1, *part.shape[-3:]))


def _initial_log_a(shape, dtype=None):
    """Draws log A, with A between 0.01 and 16."""
    return ops.log(keras.initializers.RandomUniform(0.01, 16.0)(shape, dtype))


def _initial_step_bias(shape, dtype=None):
    """Draws b so that softplus(b) is log-uniform between 0.001 and 0.1, as in Mamba2."""
    bounds = math.log(0.001), math.log(0.1)
    step = ops.exp(keras.initializers.RandomUniform(*bounds)(shape, dtype))
    return step + ops.log(-ops.expm1(-step))
