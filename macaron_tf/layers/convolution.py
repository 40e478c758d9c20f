"""Causal convolutions and residual blocks of temporal convolutional networks (TCN)."""

import functools

import keras
from keras import ops

from macaron_tf.layers.recording import Recording


class CausalConvolution(Recording, keras.layers.Layer):
    """Dilated causal convolution with weight normalization: `y[t] = b + sum_i W_i x[t - d i]`.

    Maps `(B, L, C)` to `(B, L, F)`. The index i runs from 0 to k - 1, and x is 0 before the first
    position. Padding may only be at the end. The kernel is `W = g v / |v|`, where `|v|` is the norm
    over all weights of one output channel. The length g and the direction v are trained. v is
    initialized uniformly within ±1 / sqrt(k C), and g is initialized to `|v|`.

    Args:
        filters: number of output channels F.
        kernel_size: kernel size k.
        dilation: dilation d in positions.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 3.2; Salimans and Kingma 2016, eq. 2.
    """

    input_rank = 3

    def __init__(self, filters: int, kernel_size: int, dilation: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")

    def build(self, x_shape):
        # Autocast is off so that the norm is float32 under any dtype policy.
        shape, options = (self.kernel_size, x_shape[-1], self.filters), {"autocast": False}
        self.direction = self.add_weight(shape, self.initializer, name="direction", **options)
        self.length = self.add_weight(
            shape[-1:], lambda shape, dtype=None: self._norm(), name="length", **options
        )
        self.bias = self.add_weight(shape[-1:], "zeros", name="bias")

    def _norm(self):
        return ops.sqrt(ops.sum(ops.square(self.direction), axis=(0, 1)))  # (k, C, F) -> (F,)

    @property
    def kernel(self):
        """Normalized kernel W, `(k, C, F)`. The last tap applies to the current position."""
        kernel = ops.convert_to_tensor(self.direction) * (self.length / self._norm())
        return ops.cast(kernel, self.compute_dtype)

    def call(self, x):
        padding = (self.kernel_size - 1) * self.dilation
        x = ops.pad(x, [[0, 0], [padding, 0], [0, 0]])  # (B, padding + L, C)
        return ops.conv(x, self.kernel, padding="valid", dilation_rate=self.dilation) + self.bias

    def call_subsampled(self, x, stride: int = 1):
        """Applies the layer to a subsampled sequence that contains only every d-th position.

        `x (B, L', C)` has the inputs at positions ..., t - 2 d, t - d, t, where t is the last
        position. With stride e, the method returns the values `(B, ceil(L' / e), F)` of `call` at
        positions ..., t - 2 e d, t - e d, t.
        """
        excess = (ops.shape(x)[1] - 1) % stride
        x = ops.pad(x, [[0, 0], [self.kernel_size - 1, 0], [0, 0]])[:, excess:]
        return ops.conv(x, self.kernel, strides=stride, padding="valid") + self.bias


class ConvolutionBlock(Recording, keras.layers.Layer):
    """Residual block of a TCN, `relu(x + F(x))`: `(B, L, C)` to `(B, L, filters)`.

    F consists of two causal convolutions, each followed by ReLU and dropout. If the number of
    channels in x differs from `filters`, a 1 x 1 convolution projects x to `filters` channels.
    Dropout removes a channel at all positions of a sequence.

    References: Bai et al. 2018, section 3.4 and figure 1 (b).
    """

    input_rank = 3

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        dilation: int = 1,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.convolutions = [
            CausalConvolution(filters, kernel_size, dilation, name=name)
            for name in ("convolution_0", "convolution_1")
        ]
        self.drops = [keras.layers.SpatialDropout1D(dropout) for _ in range(2)]
        self.skip = None

    def build(self, x_shape):
        if x_shape[-1] != self.filters:
            # The released code uses 0.01, so that the skip path is small compared with F at the
            # start.
            initializer = keras.initializers.RandomNormal(stddev=0.01)
            self.skip = self.dense_part("skip", x_shape, self.filters, initializer)
        first, second = self.convolutions
        first.build(x_shape)
        second.build((*x_shape[:-1], self.filters))

    def call(self, x, training=None):
        return self._residual(*self.convolutions, x, x, training)

    def call_subsampled(self, x, training=None):
        """Applies the block to a subsampled sequence: `(B, L', C)` to `(B, ceil(L' / 2), filters)`.

        The L' inputs are the values at every d-th position of the sequence, where d is the
        dilation. The outputs are at every second of these positions, the last one included.
        """
        first, second = (convolution.call_subsampled for convolution in self.convolutions)
        start = x[:, (ops.shape(x)[1] - 1) % 2 :: 2]  # (B, ceil(L' / 2), C)
        return self._residual(first, functools.partial(second, stride=2), x, start, training)

    def _residual(self, first, second, x, start, training):
        """Adds `second(first(x))`, each with ReLU and dropout, to `start`."""
        for convolution, drop in zip((first, second), self.drops, strict=True):
            x = drop(ops.relu(convolution(x)), training=training)
        return ops.relu((self.skip(start) if self.skip else start) + x)
