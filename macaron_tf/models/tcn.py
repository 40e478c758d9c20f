"""The temporal convolutional network: blocks whose dilation doubles."""

from collections.abc import Sequence

import keras

from macaron_tf.layers.convolution import ConvolutionBlock


@keras.saving.register_keras_serializable(package="macaron_tf")
class TemporalConvolution(keras.layers.Layer):
    """Convolution blocks one after the other, block i with dilation 2^i (TCN).

    Args:
        filters: output channels of each block, n of them.
        kernel_size: k of all convolutions.
        dropout, spatial_dropout, weight_norm: see `ConvolutionBlock`.
        last_only: return the last position alone. Only what it depends on is computed: half of the
            positions are left out after each block, and all blocks together cost three
            convolutions over the whole sequence instead of 2 n.

    Call arguments: `x (B, L, C)`, with padding at its end if any. Returns `(B, L, F)`, or with
    `last_only` `(B, F)`. No position sees a later one.

    Cached decoding: `empty_cache`, `step` and `read`, at a constant cost a token.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 3.
    """

    def __init__(
        self,
        filters: Sequence[int],
        kernel_size: int,
        dropout: float = 0.0,
        spatial_dropout: bool = True,
        weight_norm: bool = True,
        last_only: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = not last_only
        self.filters = list(filters)
        self.kernel_size = kernel_size
        self.dropout = dropout
        self.spatial_dropout = spatial_dropout
        self.weight_norm = weight_norm
        self.last_only = last_only
        if not self.filters:
            raise ValueError("filters is empty: give the channels of at least one block")
        self.blocks = [
            ConvolutionBlock(
                width,
                kernel_size,
                dilation=2**number,
                dropout=dropout,
                spatial_dropout=spatial_dropout,
                weight_norm=weight_norm,
                dtype=self.dtype_policy,
                name=f"block_{number}",
            )
            for number, width in enumerate(self.filters)
        ]

    @property
    def receptive_field(self) -> int:
        """How many positions an output depends on, its own included: 1 + 2 (k - 1) (2^n - 1)."""
        return 1 + sum(c.reach for block in self.blocks for c in block.convolutions)

    def build(self, x_shape):
        for block in self.blocks:
            block.build(x_shape)
            x_shape = block.compute_output_shape(x_shape)
        self.built = True

    def call(self, x, training=None):
        for block in self.blocks:
            if self.last_only:
                x = block.call_thinned(x, training=training)
            else:
                x = block(x, training=training)
        return x[:, -1] if self.last_only else x

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """The windows of all convolutions, of K hypotheses: `(B, K, (k - 1) d, C)` each."""
        return [block.empty_cache(batch_size, beam_size, max_length) for block in self.blocks]

    def step(self, x, index, cache):
        """One new token of each hypothesis, `x (B K, C)`: `(B K, F)` and the new windows."""
        return self._through("step", x, index, cache)

    def read(self, x, index, cache):
        """The next tokens of each text, `x (B, L, C)`: `(B, L, F)` and the new windows."""
        return self._through("read", x, index, cache)

    def _through(self, method: str, x, index, cache):
        held = []
        for block, windows in zip(self.blocks, cache, strict=True):
            x, windows = getattr(block, method)(x, index, windows)
            held.append(windows)
        return x, held

    def compute_output_shape(self, x_shape):
        batch, length, _ = x_shape
        return (batch, self.filters[-1]) if self.last_only else (batch, length, self.filters[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "dropout": self.dropout,
            "spatial_dropout": self.spatial_dropout,
            "weight_norm": self.weight_norm,
            "last_only": self.last_only,
        }
