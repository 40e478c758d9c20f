"""Metrics as sums over tokens, added up on the host only when somebody looks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

# Added by the fit-able model to what the objective returns, one value an update each.
UPDATES = "updates"  # 1 where the optimizer took a step
SKIPPED = "skipped"  # 1 where the update was left out for a NaN or infinite gradient
SKIPPED_IN_A_ROW = "skipped_in_a_row"
GRADIENT_NORM = "gradient_norm"  # global, before clipping
LEARNING_RATE = "learning_rate"

_GREATEST = (SKIPPED_IN_A_ROW,)
_LATEST = (LEARNING_RATE,)
_RENAMED = {"correct": "accuracy"}


class Sums:
    """Running sums of named scalars, given a packed vector an update.

    Vectors stay where they were computed (`add` waits for nothing) until `totals` fetches them
    together. Added up in float64 in the order given: the same additions give the same bits.
    """

    def __init__(self):
        self._names: tuple[str, ...] = ()
        self._pending: list = []
        self._totals: dict[str, float] = {}

    def reset(self) -> None:
        """Starts again from nothing."""
        self._pending = []
        self._totals = {}

    def add(self, names: Sequence[str], vector) -> None:
        """Adds an update's values, or several updates'.

        Args:
            names: what the values are.
            vector: float tensor of shape `(len(names),)` or `(updates, len(names))`.
        """
        if tuple(names) != self._names:
            self.totals()
            self._names = tuple(names)
        self._pending.append(vector)

    def totals(self) -> dict[str, float]:
        """The sums by name (the greatest of `skipped_in_a_row`, the latest learning rate)."""
        # np.asarray of a tensor on the host shares its memory: some microseconds an update.
        # (K,) or (N, K) each -> N rows of K
        rows = [row for pending in self._pending for row in np.atleast_2d(pending).tolist()]
        for values in rows:
            for name, value in zip(self._names, values, strict=True):
                before = self._totals.get(name, 0.0)
                if name in _GREATEST:
                    value = max(before, value)
                elif name not in _LATEST:
                    value = before + value
                self._totals[name] = value
        self._pending = []
        return dict(self._totals)

    def load(self, totals: Mapping[str, float]) -> None:
        """Goes on from what an earlier `totals` returned."""
        self.reset()
        self._totals = {name: float(value) for name, value in totals.items()}


def metrics_from_sums(totals: Mapping[str, float]) -> dict[str, float]:
    """Means over tokens from sums over tokens.

    `X_sum` becomes `X = X_sum / X_weight`, with `weight` where there is no `X_weight` (and
    `correct_sum` becomes `accuracy`); `perplexity` is `exp(nll)` where there is an nll; `tokens`
    (the weight) and any other sum are means over the updates (over the batches in an
    evaluation).

    Args:
        totals: what `Sums.totals` returned.

    Returns:
        The metrics by name; NaN where nothing was counted, {} where nothing was added.
    """
    if not totals:
        return {}
    updates = totals.get(UPDATES, 0.0)
    metrics = {}
    for name, value in totals.items():
        if name.endswith("_sum"):
            base = name.removesuffix("_sum")
            weight = totals.get(f"{base}_weight", totals["weight"])
            metrics[_RENAMED.get(base, base)] = value / weight if weight else math.nan
        elif name in _LATEST or name == SKIPPED:
            metrics[name] = value
        elif name == "weight":
            metrics["tokens"] = value / updates if updates else math.nan
        elif name not in (UPDATES, *_GREATEST) and not name.endswith("_weight"):
            metrics[name] = value / updates if updates else math.nan
    nll = metrics.get("nll")
    if nll is not None:
        # exp(709.8) is the largest a double holds; a run that bad has no use for the digits.
        metrics["perplexity"] = math.inf if nll >= 700 else math.exp(nll)
    return metrics
