"""Attention with linear biases (ALiBi): scores fall linearly with the query-key distance."""

import math

import keras
import numpy as np
from keras import ops

from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.mixer import Context


class AlibiAttention(MultiHeadAttention):
    """Self-attention with linear biases (ALiBi).

    The score of key j for query i is `q_i k_j / sqrt(d) - slope |i - j|`. Each head has a fixed
    slope. The layer has no trained weights for positions, so texts may be longer at inference than
    in training. The paper's models are causal. In an encoder, an earlier key and a later key at the
    same distance get the same bias. The arguments are those of `MultiHeadAttention` except `cross`.

    References: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables
    Input Length Extrapolation", section 3.
    """

    reads = (*MultiHeadAttention.reads, "positions")

    def scores(self, query, key, context: Context, key_positions):
        scores = super().scores(query, key, context, key_positions)
        positions, key_positions = context.positions[..., None], key_positions[..., None, :]
        distances = ops.cast(ops.abs(positions - key_positions), "float32")  # (..., T, S)
        biases = distances * slopes(self.num_heads)[:, None, None]  # (..., H, T, S)
        # Scores are float32 under any dtype policy, because bfloat16 rounds distance 257 to 256.
        return ops.cast(scores, keras.backend.result_type(scores.dtype, "float32")) - biases


def slopes(num_heads: int) -> np.ndarray:
    """Computes the slopes of H = `num_heads` heads, `(H,)` float32.

    If H is a power of two, the slopes are 2^(-8/H), 2^(-16/H), ..., 1/256. Otherwise, P is the
    largest power of two below H. The function appends the first, third, fifth, ... slope for 2 P
    heads to the slopes for P heads, and returns the first H slopes.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    first = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([first, between])[:num_heads].astype("float32")
