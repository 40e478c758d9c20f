"""Power laws: how a cost grows with a size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """`cost = factor * size ** exponent`, the straight line of least squares between logarithms.

    Attributes:
        exponent, factor: of the law.
        r_squared: share of the logarithms' variance that it explains; None of two points, which
            any law explains.
        sizes: how many points there were.
    """

    exponent: float
    factor: float
    r_squared: float | None
    sizes: int

    def __str__(self) -> str:
        if self.r_squared is None:
            return f"{self.exponent:.2f} (two points)"
        return f"{self.exponent:.2f} (R² {self.r_squared:.3f})"


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> PowerLaw:
    """Fits a law.

    Args:
        sizes: two or more, different, above 0.
        costs: one of each size, above 0.
    """
    x, y = np.log(sizes), np.log(costs)
    exponent, offset = np.polyfit(x, y, 1)
    spread = np.sum((y - y.mean()) ** 2)
    left = np.sum((y - exponent * x - offset) ** 2)
    r_squared = None
    if len(sizes) > 2:
        r_squared = float(1 - left / spread) if spread > 0 else 1.0
    return PowerLaw(float(exponent), float(np.exp(offset)), r_squared, len(sizes))


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, PowerLaw]:
    """The law of all points, and that of the upper half, which constant costs bend less.

    Args:
        sizes: two or more, rising.
        costs: one of each size.

    Returns:
        By "all" and "upper half"; of two or three points the latter is that of the last two.
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    return {
        "all": power_law(sizes, costs),
        "upper half": power_law(sizes[first:], costs[first:]),
    }
