"""Rotary position embeddings (RoPE): attention that rotates queries and keys by position."""

from collections.abc import Sequence

import numpy as np
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.layers.attention import MultiHeadAttention


class RotaryAttention(MultiHeadAttention):
    """Self-attention with rotary positions (RoPE): scores depend on contents and distances.

    Channels i and i + d/2 of a head are rotated as a pair by the angle
    `position * base^(-2 i / d)`, in queries and keys, so that their product depends on the
    difference of positions only. Caches hold rotated keys. The pairs are those of Hugging Face; the
    paper pairs neighbours.

    Args:
        rotary_base: the base; a larger one rotates more slowly, for longer texts.
        rotary_dim: number of channels that are rotated, the first ones, which replaces d in the
            formula; None: all.
        rotary_scaling: see `frequencies`.
        kwargs: arguments of `MultiHeadAttention` except `cross`.

    References: Su et al. 2021, "RoFormer", section 3.2; its layout: Touvron et al. 2023, "LLaMA",
    as released by Hugging Face; a part of the channels: Black et al. 2022, "GPT-NeoX-20B".
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

    @property
    def reads(self) -> tuple[str, ...]:
        rotary = ("positions", "rotary_base", "rotary_dim", "rotary_scaling")
        local = ("local_rotary_base",) if self.window else ()
        return (*MultiHeadAttention.reads, *rotary, *local)

    def build_projections(self, x_shape, memory_shape, width):
        turning = self.rotary_dim or self._head_dim
        name = "rotary_dim" if self.rotary_dim else "head_dim"
        check_divisible(name, turning, "pairs of channels", 2)
        if turning > self._head_dim:
            raise ValueError(
                f"rotary_dim={turning} is more than head_dim={self._head_dim}: lower rotary_dim"
            )
        self._frequencies = frequencies(turning, self.rotary_base, self.rotary_scaling)
        super().build_projections(x_shape, memory_shape, width)

    def rotate(self, query, key, positions):
        # Angles in float32 under any policy: bfloat16 cannot tell position 256 from 257.
        positions = ops.cast(positions, "float32")[..., None]
        angles = positions * self._frequencies.astype("float32")  # (..., T, r/2)
        cosine, sine = (ops.cast(f(angles), query.dtype) for f in (ops.cos, ops.sin))
        half = len(self._frequencies)
        cuts = 2 if 2 * half == self._head_dim else [half, 2 * half]

        def turned(x):
            first, second, *rest = ops.split(x, cuts, axis=-1)  # (..., T, r/2) twice
            pair = [first * cosine - second * sine, second * cosine + first * sine]
            return ops.concatenate([*pair, *rest], axis=-1)

        return turned(query), turned(key)


def frequencies(dim: int, base: float, scaling: Sequence[float] = ()) -> np.ndarray:
    """Radians per position by which each channel pair is rotated, `(dim / 2,)` float64.

    Args:
        dim: number of rotated channels.
        base: see `RotaryAttention`.
        scaling: () changes no frequency; (factor,) divides all of them; (factor, low, high, length)
            divides those with less than `low` turns in `length` positions, leaves those with `high`
            turns or more, and interpolates in between.

    References: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation"; Dubey et al. 2024, "The Llama 3 Herd of Models", its released code.
    """
    found = base ** (-2.0 * np.arange(dim // 2, dtype="float64") / dim)
    if not scaling:
        return found
    factor, *bands = scaling
    kept = 0.0
    if bands:
        low, high, length = bands
        kept = np.clip((length * found / (2.0 * np.pi) - low) / (high - low), 0.0, 1.0)
    return found * (kept + (1.0 - kept) / factor)


def check_scaling(scaling: Sequence[float]) -> None:
    """Raises a ValueError for a scaling that `frequencies` does not take."""
    if len(scaling) not in (0, 1, 4) or (len(scaling) == 4 and scaling[2] <= scaling[1]):
        raise ValueError(
            f"rotary_scaling={tuple(scaling)} is not valid: give (factor,), or (factor, low, high, "
            "length) with low below high"
        )
