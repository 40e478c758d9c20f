"""Causal convolutions of a temporal convolutional network (TCN), and its residual block."""

import keras
from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.recording import Recording


class CausalConvolution(Recording, keras.layers.Layer):
    """Dilated causal convolution with weight normalization: `y[t] = b + sum_i W_i x[t - d i]`.

    i runs from 0 to k - 1, and x is 0 before the first position. The kernel is `W = g v / |v|`,
    with the norm over all weights of an output channel: g is its trained length and v its trained
    direction. g starts at |v|, and v is uniform within 1 / sqrt(k C).

    Args:
        filters: F, output channels.
        kernel_size: k, the number of taps.
        dilation: d, the distance of neighbouring taps in positions.

    Call arguments: `x (B, L, C)`; padding may only be at its end. Returns `(B, L, F)`. No position
    sees later ones, nor any more than (k - 1) d positions before it.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 3.2; Salimans and Kingma 2016, eq. 2.
    """

    def __init__(self, filters: int, kernel_size: int, dilation: int = 1, **kwargs):
        super().__init__(**kwargs)
        check_count("filters", filters)
        check_count("kernel_size", kernel_size)
        check_count("dilation", dilation)
        self.initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")

    def build(self, x_shape):
        # Without autocast, so that the norm is computed in float32 under any policy.
        self.direction = self.add_weight(
            name="direction",
            shape=(self.kernel_size, x_shape[-1], self.filters),
            initializer=self.initializer,
            autocast=False,
        )
        self.length = self.add_weight(
            name="length",
            shape=(self.filters,),
            initializer=lambda shape, dtype=None: self._norm(),
            autocast=False,
        )
        self.bias = self.add_weight(name="bias", shape=(self.filters,), initializer="zeros")

    def _norm(self):
        return ops.sqrt(ops.sum(ops.square(self.direction), axis=(0, 1)))  # (k, C, F) -> (F,)

    @property
    def kernel(self):
        """W, `(k, C, F)`; the last tap is that of the position itself."""
        kernel = ops.convert_to_tensor(self.direction) * (self.length / self._norm())
        return ops.cast(kernel, self.compute_dtype)

    def call(self, x):
        reach = (self.kernel_size - 1) * self.dilation
        x = ops.pad(x, [[0, 0], [reach, 0], [0, 0]])  # (B, reach + L, C)
        return ops.conv(x, self.kernel, padding="valid", dilation_rate=self.dilation) + self.bias

    def call_thinned(self, x, every: int = 1):
        """Applies the layer to a sequence that holds every d-th position only, up to the last one.

        Args:
            x: `(B, L', C)`, the inputs at positions ..., t - 2 d, t - d, t.
            every: e; outputs are computed at positions ..., t - 2 e d, t - e d, t.

        Returns:
            `(B, ceil(L' / e), F)`, equal to the outputs of `call` at those positions.
        """
        unwanted = (ops.shape(x)[1] - 1) % every
        x = ops.pad(x, [[0, 0], [self.kernel_size - 1, 0], [0, 0]])[:, unwanted:]
        return ops.conv(x, self.kernel, strides=every, padding="valid") + self.bias


class ConvolutionBlock(Recording, keras.layers.Layer):
    """Residual block of a TCN, `relu(x + F(x))`; F is twice causal convolution, ReLU and dropout.

    If x does not have F channels, a 1 x 1 convolution brings it to F.

    Args:
        filters, kernel_size, dilation: see `CausalConvolution`.
        dropout: dropout rate after each convolution.
        spatial_dropout: whether a dropped channel is dropped at all positions of a sequence.

    Call arguments: `x (B, L, C)`. Returns `(B, L, F)`.

    References: Bai et al. 2018, section 3.4 and figure 1 (b).
    """

    reads = ("spatial_dropout",)

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        dilation: int = 1,
        dropout: float = 0.0,
        spatial_dropout: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        drop = keras.layers.SpatialDropout1D if spatial_dropout else Dropout
        self.convolutions = [
            CausalConvolution(filters, kernel_size, dilation, name=name)
            for name in ("convolution_0", "convolution_1")
        ]
        self.drops = [drop(dropout) for _ in range(2)]
        self.skip = None

    def build(self, x_shape):
        if x_shape[-1] != self.filters:
            # The released code's 0.01: the skip path starts small compared with F.
            initializer = keras.initializers.RandomNormal(stddev=0.01)
            self.skip = self.dense_part("skip", x_shape, self.filters, initializer)
        first, second = self.convolutions
        first.build(x_shape)
        second.build((*x_shape[:-1], self.filters))

    def call(self, x, training=None):
        first, second = self.convolutions
        h = self._activated(0, first(x), training)
        return self._added(x, self._activated(1, second(h), training))

    def call_thinned(self, x, training=None):
        """See `CausalConvolution.call_thinned`: maps `(B, L', C)` to `(B, ceil(L' / 2), F)`."""
        first, second = self.convolutions
        kept = x[:, (ops.shape(x)[1] - 1) % 2 :: 2]  # (B, ceil(L' / 2), C)
        h = self._activated(0, first.call_thinned(x), training)
        return self._added(kept, self._activated(1, second.call_thinned(h, every=2), training))

    def _activated(self, number: int, h, training):
        return self.drops[number](ops.relu(h), training=training)

    def _added(self, x, h):
        return ops.relu((self.skip(x) if self.skip else x) + h)
