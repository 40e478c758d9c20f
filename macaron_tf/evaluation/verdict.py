"""Statistical verdicts of a study: whether an arm scores better or worse than its baseline.

A study compares training configurations, the arms, with a baseline configuration. Each
configuration is trained with several seeds.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

SEEDS = 3  # minimum number of seeds for a verdict
_LEVEL = 0.05
RULE = (
    "An arm is compared with the baseline seed by seed. The tables show the mean of the paired "
    "differences, its 95% interval (Student's t) and the p of a two-sided paired t-test, corrected "
    "by Holm's method for the number of arms that are tested. The arm is *better* or *worse* if "
    "the corrected p is below 0.05, and otherwise *not decided*. There is *no verdict* with fewer "
    "than three seeds, if any seed of the arm or of the baseline is at chance level, or if the "
    "differences of all seeds are equal."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on the difference between an arm and its baseline.

    Attributes:
        differences: for each seed, the arm's score minus the baseline's score.
        interval, p, corrected: 95% confidence interval of the mean, p-value of the two-sided paired
            t-test, and p-value after Holm's correction for all tests of the study; `None` without a
            test.
        word: `"better"`, `"worse"`, `"not decided"` or `"no verdict"`.
        reason: reason for `"no verdict"`. Other verdicts have the reason "".
    """

    differences: tuple[float, ...]
    difference: float
    interval: tuple[float, float] | None = None
    p: float | None = None
    corrected: float | None = None
    word: str = "no verdict"
    reason: str = ""


def is_at_chance(
    scores: Sequence[float], higher_is_better: bool, chance_level: float | None, margin: float
) -> bool:
    """Returns whether any score is not better than a known `chance_level` by more than `margin`."""
    if chance_level is None:
        return False
    sign = 1 if higher_is_better else -1
    return min(sign * (score - chance_level) for score in scores) <= margin


def judge(
    arms: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    higher_is_better: bool,
    chance_level: float | Mapping[str, float | None] | None = None,
    margin: float = 0.0,
) -> dict[str, Verdict]:
    """Returns the verdict on each arm of a study, by the rule in `RULE`.

    Args:
        arms: dict mapping arm name to a tuple (scores of the arm, scores of its baseline), with one
            score per seed in the same order.
        chance_level: score of a model that has learnt nothing, such as the majority-class score, or
            a mapping of that of each arm. `None` means that it is unknown.
        margin: difference by which all scores of the arm and of its baseline must be better than
            `chance_level` for a verdict.
    """
    sign, verdicts = 1 if higher_is_better else -1, {}
    for name, (scores, baseline) in arms.items():
        level = chance_level[name] if isinstance(chance_level, Mapping) else chance_level
        chance = higher_is_better, level, margin
        differences = tuple(a - b for a, b in zip(scores, baseline, strict=True))
        mean, reason = statistics.mean(differences), ""
        if len(differences) < SEEDS:
            reason = f"fewer than {SEEDS} seeds"
        elif is_at_chance(scores, *chance) or is_at_chance(baseline, *chance):
            subject = "it" if is_at_chance(scores, *chance) else "the baseline"
            reason = f"{subject} is at chance level"
        elif np.ptp(differences) <= 1e-9 * max(map(abs, (*scores, *baseline))):
            reason = "the differences of all seeds are equal"
        verdicts[name] = Verdict(differences, mean, reason=reason)
        if not reason:
            test = scipy.stats.ttest_1samp(differences, 0.0)
            interval = tuple(map(float, test.confidence_interval(0.95)))
            verdicts[name] = Verdict(differences, mean, interval, float(test.pvalue))
    tested = [name for name in verdicts if verdicts[name].p is not None]
    tested.sort(key=lambda name: verdicts[name].p or 0.0)
    corrected = 0.0  # largest corrected p so far, because Holm's corrected p never decrease
    for rank, name in enumerate(tested):
        verdict = verdicts[name]
        corrected = max(corrected, min((len(tested) - rank) * verdict.p, 1.0))
        word = "better" if sign * verdict.difference > 0 else "worse"
        word = word if corrected < _LEVEL else "not decided"
        verdicts[name] = dataclasses.replace(verdict, corrected=corrected, word=word)
    return verdicts
