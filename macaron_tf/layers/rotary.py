"""Rotary positions: attention whose queries and keys are turned by their positions."""

import numpy as np
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.layers.attention import MultiHeadAttention


class RotaryAttention(MultiHeadAttention):
    """Attention over the sequence itself whose scores depend on contents and distances (RoPE).

    Channels i and i + d/2 of a head's query and key are turned in their plane by the angle
    `position * base^(-2 i / d)`, so that their product depends on the difference of two positions
    alone. Caches hold turned keys. The pairs are Hugging Face's, not neighbours as in the paper.

    Args:
        rotary_base: the base; a larger one turns slowly, for longer texts.
        kwargs: as `MultiHeadAttention`, without `cross`.

    References: Su et al. 2021, "RoFormer", section 3.2; its layout: Touvron et al. 2023, "LLaMA",
    as released by Hugging Face.
    """

    reads = (*MultiHeadAttention.reads, "positions", "rotary_base")

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        rotary_base: float = 10_000.0,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, **kwargs)

    def build_projections(self, x_shape, memory_shape, width):
        check_divisible("head_dim", self._head_dim, "pairs of channels", 2)
        super().build_projections(x_shape, memory_shape, width)

    def rotate(self, query, key, positions):
        half = self._head_dim // 2
        frequencies = self.rotary_base ** (-np.arange(half, dtype="float64") / half)
        # Angles in float32 under any policy: bfloat16 cannot tell position 256 from 257.
        positions = ops.cast(positions, "float32")[..., None]
        angles = positions * frequencies.astype("float32")  # (..., T, d/2)
        cosine, sine = (ops.cast(f(angles), query.dtype) for f in (ops.cos, ops.sin))

        def turned(x):
            first, second = ops.split(x, 2, axis=-1)  # each (..., T, d/2)
            pair = [first * cosine - second * sine, second * cosine + first * sine]
            return ops.concatenate(pair, axis=-1)

        return turned(query), turned(key)
