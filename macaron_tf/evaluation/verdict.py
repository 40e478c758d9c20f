"""Statistical verdicts of a study: whether an arm is better or worse than its baseline."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

SEEDS = 3  # that a verdict needs
_LEVEL = 0.05
RULE = (
    "An arm is compared with the baseline seed by seed. The tables show the mean of the paired "
    "differences, its 95% interval (Student's t) and the p of a two-sided paired t-test, corrected "
    "by Holm's method for the number of arms that are tested. The arm is *better* or *worse* if "
    "the corrected p is below 0.05, and otherwise *not decided*. There is *no verdict* with fewer "
    "than three seeds, or if any seed of either arm has not left guessing behind."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The difference between an arm and its baseline, and the verdict on it.

    Attributes:
        differences: for each seed, the arm's score minus the baseline's.
        difference: mean of `differences`.
        interval: 95% confidence interval of the mean; None if nothing was tested.
        p: p value of the two-sided paired t-test; None if nothing was tested.
        corrected: `p` corrected by Holm's method for all tests of the study.
        word: `"better"`, `"worse"`, `"not decided"` or `"no verdict"`.
        reason: why there is no verdict; "" if there is one.
    """

    differences: tuple[float, ...]
    difference: float
    interval: tuple[float, float] | None = None
    p: float | None = None
    corrected: float | None = None
    word: str = "no verdict"
    reason: str = ""


def is_guessing(
    scores: Sequence[float], higher_is_better: bool, guessing: float | None, margin: float
) -> bool:
    """Whether any seed's score is within a margin of guessing's, or worse; see `judge`."""
    sign = 1 if higher_is_better else -1
    return guessing is not None and min(sign * (one - guessing) for one in scores) <= margin


def judge(
    arms: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    higher_is_better: bool,
    guessing: float | None = None,
    margin: float = 0.0,
) -> dict[str, Verdict]:
    """Judges the arms of a study by `RULE`.

    Args:
        arms: for each arm, its scores and its baseline's scores with the same seeds.
        higher_is_better: whether a higher score is better.
        guessing: score of a model that has learnt nothing; None: unknown.
        margin: a score must be better than `guessing` by more than this.
    """
    sign, found = 1 if higher_is_better else -1, {}
    known = higher_is_better, guessing, margin
    for name, (scores, baseline) in arms.items():
        differences = tuple(a - b for a, b in zip(scores, baseline, strict=True))
        mean, reason = statistics.mean(differences), ""
        if len(differences) < SEEDS:
            reason = f"fewer than {SEEDS} seeds"
        elif is_guessing(scores, *known) or is_guessing(baseline, *known):
            who = "it" if is_guessing(scores, *known) else "the baseline"
            reason = f"{who} has not left guessing behind"
        elif np.ptp(differences) <= 1e-9 * max(map(abs, (*scores, *baseline))):
            reason = "the differences of all seeds are equal"
        found[name] = Verdict(differences, mean, reason=reason)
        if not reason:
            test = scipy.stats.ttest_1samp(differences, 0.0)
            interval = tuple(map(float, test.confidence_interval(0.95)))
            found[name] = Verdict(differences, mean, interval, float(test.pvalue))
    tested = [name for name in found if found[name].p is not None]
    tested.sort(key=lambda name: found[name].p or 0.0)
    least = 0.0  # a corrected p is no smaller than those before it
    for rank, name in enumerate(tested):
        verdict = found[name]
        least = max(least, min((len(tested) - rank) * verdict.p, 1.0))
        word = "better" if sign * verdict.difference > 0 else "worse"
        word = word if least < _LEVEL else "not decided"
        found[name] = dataclasses.replace(verdict, corrected=least, word=word)
    return found
