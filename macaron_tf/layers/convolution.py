"""Dilated causal convolutions with normalized weights, and the residual block of two of them."""

import keras
from keras import ops

from macaron_tf.checks import check_count, check_fraction
from macaron_tf.layers.norms import Dropout

# Uniform within 1 / sqrt(fan-in) on either side.
_UNIFORM = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


@keras.saving.register_keras_serializable(package="macaron_tf")
class CausalConvolution(keras.layers.Layer):
    """`y[t] = b + sum_i W_i x[t - d i]`, i from 0 to k - 1; x before the first position is 0.

    With `weight_norm` the kernel is `W = g v / |v|`, the norm taken over all that one output
    channel is made of: g is trained as its length and v as its direction. g starts as |v|.

    Args:
        filters: output channels F.
        kernel_size: k taps.
        dilation: d, positions from tap to tap.
        weight_norm: whether length and direction of the kernel are weights of their own.
        kernel_initializer: of v, or of W itself; by default uniform within 1 / sqrt(k C).

    Call arguments: `x (B, L, C)`, with padding at its end if any. Returns `(B, L, F)`. No position
    sees a later one, and none further back than (k - 1) d.

    Cached decoding: `empty_cache`, `step` and `read`, whose state is the last (k - 1) d inputs.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 3.2; Salimans and Kingma 2016, eq. 2.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        dilation: int = 1,
        weight_norm: bool = True,
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.filters = check_count("filters", filters)
        self.kernel_size = check_count("kernel_size", kernel_size)
        self.dilation = check_count("dilation", dilation)
        self.weight_norm = weight_norm
        self.kernel_initializer = keras.initializers.get(kernel_initializer or _UNIFORM.clone())

    def build(self, x_shape):
        # Not cast by the policy: the norm is float32, as norms are.
        self.direction = self.add_weight(
            name="direction" if self.weight_norm else "kernel",
            shape=(self.kernel_size, x_shape[-1], self.filters),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        if self.weight_norm:
            self.length = self.add_weight(
                name="length",
                shape=(self.filters,),
                initializer=lambda shape, dtype=None: self._norm(),
                autocast=False,
            )
        self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")
        self.built = True

    def _norm(self):
        return ops.sqrt(ops.sum(ops.square(self.direction), axis=(0, 1)))  # (k, C, F) -> (F,)

    @property
    def kernel(self):
        """W, `(k, C, F)`: the tap of the position itself comes last."""
        kernel = ops.convert_to_tensor(self.direction)
        if self.weight_norm:
            kernel = kernel * (self.length / self._norm())
        return ops.cast(kernel, self.compute_dtype)

    @property
    def reach(self) -> int:
        """How many positions back an output sees: (k - 1) d."""
        return (self.kernel_size - 1) * self.dilation

    def call(self, x):
        return self._behind(ops.pad(x, [[0, 0], [self.reach, 0], [0, 0]]))

    def _behind(self, x):
        """The outputs behind the first (k - 1) d positions: `(B, reach + L, C) -> (B, L, F)`."""
        y = ops.conv(x, self.kernel, padding="valid", dilation_rate=self.dilation)
        return y + self.bias

    def call_thinned(self, x, every: int = 1):
        """The layer over a sequence of which only each d-th position is there, the last one too.

        Args:
            x: `(B, L', C)`: positions ..., t - 2 d, t - d, t.
            every: e, which outputs are wanted: ..., t - 2 e d, t - e d, t.

        Returns:
            `(B, ceil(L' / e), F)`, what `call` would have at those positions.
        """
        unwanted = (ops.shape(x)[1] - 1) % every
        x = ops.pad(x, [[0, 0], [self.kernel_size - 1, 0], [0, 0]])[:, unwanted:]
        return ops.conv(x, self.kernel, strides=every, padding="valid") + self.bias

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """The inputs before the first token of K hypotheses: zeros `(B, K, (k - 1) d, C)`.

        `max_length` changes nothing: the window does not grow.
        """
        channels = self.direction.shape[1]
        return ops.zeros((batch_size, beam_size, self.reach, channels), self.compute_dtype)

    def step(self, x, index, cache):
        """One new token of each hypothesis.

        Args:
            x: `(B K, C)` or `(B, K, C)`.
            index: not needed; the window knows.
            cache: the last (k - 1) d inputs, `(B, K, (k - 1) d, C)`, oldest first.

        Returns:
            An output `(..., F)` of x's leading axes, and the new window.
        """
        k, channels, filters = self.direction.shape
        beams = cache.shape[1]
        new = ops.reshape(x, (-1, beams, 1, channels))  # (B K, C) -> (B, K, 1, C)
        window = ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=2)
        taps = window[:, :, :: self.dilation]  # (B, K, 1 + (k - 1) d, C) -> (B, K, k, C)
        taps = ops.reshape(taps, (-1, k * channels))  # (B K, k C)
        y = ops.matmul(taps, ops.reshape(self.kernel, (k * channels, filters))) + self.bias
        y = ops.reshape(y, (*ops.shape(x)[:-1], filters))
        return y, window[:, :, 1:]

    def read(self, x, index, cache):
        """The next L tokens of each text at once, as L steps do.

        Args:
            x: `(B, L, C)`.
            index: not needed. cache: as of `step`, of K = 1.

        Returns:
            `(B, L, F)`, and the new window.
        """
        window = ops.concatenate([cache[:, 0], ops.cast(x, cache.dtype)], axis=1)  # (B, reach+L, C)
        kept = ops.reshape(window[:, ops.shape(x)[1] :], ops.shape(cache))
        return self._behind(window), kept

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "dilation": self.dilation,
            "weight_norm": self.weight_norm,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class ConvolutionBlock(keras.layers.Layer):
    """`relu(x + F(x))`, F twice: causal convolution, ReLU, dropout.

    Where the widths differ a 1 x 1 convolution brings x to F channels.

    Args:
        filters, kernel_size, dilation, weight_norm: of both convolutions.
        dropout: 0 to 1.
        spatial_dropout: whether a channel is dropped in all of a sequence's positions together.

    Call arguments: `x (B, L, C)`. Returns `(B, L, F)`. Cached decoding: `empty_cache`, `step` and
    `read`.

    References: Bai et al. 2018, section 3.4 and figure 1 (b).
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        dilation: int = 1,
        dropout: float = 0.0,
        spatial_dropout: bool = True,
        weight_norm: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.filters = filters
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.dropout = check_fraction("dropout", dropout)
        self.spatial_dropout = spatial_dropout
        self.weight_norm = weight_norm
        drop = keras.layers.SpatialDropout1D if spatial_dropout else Dropout
        self.convolutions = [
            CausalConvolution(
                filters,
                kernel_size,
                dilation,
                weight_norm,
                dtype=self.dtype_policy,
                name=f"convolution_{number}",
            )
            for number in range(2)
        ]
        self.drops = [drop(dropout, dtype=self.dtype_policy) for _ in range(2)]
        self.skip = None

    def build(self, x_shape):
        if x_shape[-1] != self.filters:
            self.skip = keras.layers.Dense(
                self.filters,
                # Small, so that the block's two ways start apart: the released code's 0.01.
                kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
                dtype=self.dtype_policy,
                name="skip",
            )
            self.skip.build(x_shape)
        first, second = self.convolutions
        first.build(x_shape)
        second.build((*x_shape[:-1], self.filters))
        self.built = True

    def call(self, x, training=None):
        h = x
        for number, convolution in enumerate(self.convolutions):
            h = self._activated(number, convolution(h), training)
        return self._added(x, h)

    def call_thinned(self, x, training=None):
        """The block where only each d-th position is there; returns each 2 d-th, the last included.

        Args:
            x: `(B, L', C)`, see `CausalConvolution.call_thinned`.
        """
        first, second = self.convolutions
        kept = x[:, (ops.shape(x)[1] - 1) % 2 :: 2]  # (B, ceil(L' / 2), C)
        h = self._activated(0, first.call_thinned(x), training)
        h = self._activated(1, second.call_thinned(h, every=2), training)
        return self._added(kept, h)

    def _activated(self, number: int, h, training):
        return self.drops[number](ops.relu(h), training=training)

    def _added(self, x, h):
        return ops.relu((self.skip(x) if self.skip else x) + h)

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Both convolutions' windows, see `CausalConvolution.empty_cache`."""
        return [c.empty_cache(batch_size, beam_size, max_length) for c in self.convolutions]

    def step(self, x, index, cache):
        """One new token of each hypothesis, `x (B K, C)`; returns `(B K, F)` and the windows."""
        return self._through("step", x, index, cache)

    def read(self, x, index, cache):
        """The next tokens of each text, `x (B, L, C)`; returns `(B, L, F)` and the windows."""
        return self._through("read", x, index, cache)

    def _through(self, method: str, x, index, cache):
        h, held = x, []
        for convolution, window in zip(self.convolutions, cache, strict=True):
            h, window = getattr(convolution, method)(h, index, window)
            h = ops.relu(h)
            held.append(window)
        return self._added(x, h), held

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "dilation": self.dilation,
            "dropout": self.dropout,
            "spatial_dropout": self.spatial_dropout,
            "weight_norm": self.weight_norm,
        }
