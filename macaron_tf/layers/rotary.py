"""Attention with rotary position embeddings (RoPE)."""

from collections.abc import Sequence

import numpy as np
from keras import ops

from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.settings import SettingError


class RotaryAttention(MultiHeadAttention):
    """Self-attention with rotary position embeddings (RoPE), which rotate queries and keys.

    The layer rotates each pair of channels i and i + d/2 in a head by the angle `position *
    base^(-2 i / d)`. The product of a query and a key then depends only on their contents and on
    the difference of their positions. Caches contain rotated keys. The pairs are the same as in
    Hugging Face's code, whereas the paper pairs neighbouring channels. Other arguments are those of
    `MultiHeadAttention` except `cross`.

    Args:
        rotary_base: base of the angles. A larger base rotates more slowly, which suits longer
            texts.
        rotary_dim: number of rotated channels, counted from the first channel. This number replaces
            d in the pairs and in the angle. `None` means all channels.
        rotary_scaling: scaling of the frequencies (see `BlockConfig`).

    References: Su et al. 2021, "RoFormer", section 3.2; Touvron et al. 2023, "LLaMA", as released
    by Hugging Face, for the channel pairs; Black et al. 2022, "GPT-NeoX-20B", for `rotary_dim`.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        rotary_base: float = 10_000.0,
        rotary_dim: int | None = None,
        rotary_scaling: Sequence[float] = (),
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        check_scaling(rotary_scaling)
        rotary = ("positions", "rotary_base", "rotary_dim", "rotary_scaling")
        local = ("local_rotary_base",) if self.window else ()
        self.reads = (*MultiHeadAttention.reads, *rotary, *local)

    def build_projections(self, x_shape, memory_shape, width):
        rotated_dim = rotated_width(self.rotary_dim, self._head_dim)
        self._frequencies = frequencies(rotated_dim, self.rotary_base, self.rotary_scaling)
        super().build_projections(x_shape, memory_shape, width)

    def rotate(self, query, key, positions):
        # Angles are float32 under any dtype policy, because bfloat16 rounds position 257 to 256.
        positions = ops.cast(positions, "float32")[..., None]
        angles = positions * self._frequencies.astype("float32")  # (..., T, r/2)
        cosine, sine = (ops.cast(function(angles), query.dtype) for function in (ops.cos, ops.sin))
        half = len(self._frequencies)
        cuts = 2 if 2 * half == self._head_dim else [half, 2 * half]

        def rotate_pairs(x):
            first, second, *rest = ops.split(x, cuts, axis=-1)  # (..., T, r/2) twice
            pair = [first * cosine - second * sine, second * cosine + first * sine]
            return ops.concatenate([*pair, *rest], axis=-1)

        return rotate_pairs(query), rotate_pairs(key)


def frequencies(dim: int, base: float, scaling: Sequence[float] = ()) -> np.ndarray:
    """Computes the rotation of each channel pair in radians per position, `(dim / 2,)` float64.

    For `scaling`, see `rotary_scaling` of `BlockConfig`.

    References: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation"; Dubey et al. 2024, "The Llama 3 Herd of Models", released code.
    """
    unscaled = base ** (-2.0 * np.arange(dim // 2, dtype="float64") / dim)
    if not scaling:
        return unscaled
    factor, *bands = scaling
    unscaled_share = 0.0
    if bands:
        low, high, length = bands
        unscaled_share = np.clip((length * unscaled / (2.0 * np.pi) - low) / (high - low), 0.0, 1.0)
    return unscaled * (unscaled_share + (1.0 - unscaled_share) / factor)


def rotated_width(rotary_dim: int | None, head_dim: int) -> int:
    """Returns the number of channels to rotate, or raises a SettingError if it is not valid."""
    width, name = rotary_dim or head_dim, "rotary_dim" if rotary_dim else "head_dim"
    if width % 2 or width > head_dim:
        raise SettingError(f"{name}={width} must be even and at most {head_dim}")
    return width


def check_scaling(scaling: Sequence[float]) -> None:
    """Raises a SettingError if `scaling` is not valid for `frequencies`."""
    if len(scaling) not in (0, 1, 4) or (len(scaling) == 4 and scaling[2] <= scaling[1]):
        raise SettingError(f"rotary_scaling={(*scaling,)} must be (factor[, low, high, length])")
