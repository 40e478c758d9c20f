"""Attention with linear biases: scores fall with the distance of query and key."""

import math

import keras
import numpy as np
from keras import ops

from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.mixer import Context


class AlibiAttention(MultiHeadAttention):
    """Attention over the sequence itself: `q k / sqrt(d) - slope |i - j|`, a slope for each head.

    No weight belongs to a position, so a text may be longer than those of the training. The paper's
    models are causal; in an encoder the keys of both sides count alike.

    Args:
        kwargs: as `MultiHeadAttention`, without `cross`.

    References: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables
    Input Length Extrapolation", section 3.
    """

    reads = (*MultiHeadAttention.reads, "positions")

    def scores(self, query, key, context: Context, key_positions):
        scores = super().scores(query, key, context, key_positions)
        positions, key_positions = context.positions[..., None], key_positions[..., None, :]
        distances = ops.cast(ops.abs(positions - key_positions), "float32")  # (..., T, S)
        biases = distances * slopes(self.num_heads)[:, None, None]  # (..., H, T, S)
        # In float32 whatever the policy: bfloat16 cannot tell distance 256 from 257.
        return ops.cast(scores, keras.backend.result_type(scores.dtype, "float32")) - biases


def slopes(num_heads: int) -> np.ndarray:
    """The slopes `(H,)` float32: 2^(-8/H), 2^(-16/H), ..., 1/256 for a power of two.

    For other H: the slopes of the power of two below, then every second one of that above.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    first = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([first, between])[:num_heads].astype("float32")
