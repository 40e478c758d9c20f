"""Distances between positions: their sinusoids, and where the scores of them belong."""

import numpy as np
from keras import ops


def sinusoids(distances, width: int, clamp_length: int | None = None):
    """All sines, then all cosines, of distances: `(C,) -> (C, D)` float32.

    Args:
        distances: `(C,)` int, query - key.
        width: D.
        clamp_length: greater ones count as it, on both sides; None = none does.

    References: Dai et al. 2019 (Transformer-XL), section 3.3; Vaswani et al. 2017, section 3.5.
    """
    if clamp_length is not None:
        distances = ops.clip(distances, -clamp_length, clamp_length)
    frequencies = 10_000.0 ** (-np.arange(0, width, 2, dtype="float64") / width)
    # In float32 whatever the policy: bfloat16 cannot tell distance 256 from 257.
    angles = ops.cast(distances, "float32")[:, None] * frequencies.astype("float32")  # (C, D/2)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :width]


def aligned(scores, length):
    """Scores by distance, put where the keys stand: `(B, H, T, C) -> (B, H, T, S)`.

    Column c holds the distance S - c. Read as C rows of T, and without the first row, row i lacks
    T - i numbers more than row i - 1 did: what is left of it begins with key 0's distance. Where C
    is S + 1, the distances below 0 are missing, and what stands there must be hidden.

    References: Dai et al. 2019 (Transformer-XL), appendix B.
    """
    batch, heads, queries, columns = ops.shape(scores)
    scores = ops.reshape(scores, (batch, heads, columns, queries))[:, :, 1:]
    # (B, H, C - 1, T) -> (B, H, T, C - 1)
    return ops.reshape(scores, (batch, heads, queries, columns - 1))[..., :length]
