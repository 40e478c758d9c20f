"""Verdicts agree with SciPy's paired t-test and with Holm's correction of manual examples."""

import numpy as np
import pytest
import scipy.stats

from macaron_tf.evaluation.verdict import judge

FIRST = [5.0, 5.1, 5.2]


def one(differences, first=FIRST, **options):
    scores = [a + b for a, b in zip(first, differences, strict=True)]
    return judge({"arm": (scores, first)}, **{"higher_is_better": False, **options})["arm"]


def test_a_small_p_makes_an_arm_better_or_worse():
    found = one([-0.1, -0.11, -0.12])
    scores = np.array(FIRST) + found.differences
    assert found.p == found.corrected == pytest.approx(scipy.stats.ttest_rel(scores, FIRST).pvalue)
    assert found.word == "better" and not found.reason
    assert found.difference == pytest.approx(-0.11)
    half = 4.302653 * 0.01 / 3**0.5  # Student's t with 2 degrees of freedom
    assert found.interval == pytest.approx((-0.11 - half, -0.11 + half))
    assert one([0.1, 0.11, 0.12]).word == "worse"
    assert one([0.1, 0.11, 0.12], higher_is_better=True).word == "better"
    undecided = one([-0.1, -0.5, -0.01])
    assert undecided.word == "not decided" and undecided.interval[1] > 0


def test_p_is_corrected_for_the_arms_that_are_tested():
    def scores(p):
        """Returns scores whose paired t-test against `FIRST` has the p-value `p`."""
        return (FIRST + np.array([-1, 0, 1]) + scipy.stats.t.isf(p / 2, 2) / 3**0.5).tolist()

    wanted = {"a": 0.03, "b": 0.01, "c": 0.04}
    found = judge({name: (scores(p), FIRST) for name, p in wanted.items()}, higher_is_better=True)
    assert [found[name].p for name in wanted] == pytest.approx([*wanted.values()])
    # In order of p: 3 * 0.01, 2 * 0.03 and 1 * 0.04, which is raised to the value before.
    corrected = [found[name].corrected for name in wanted]
    assert corrected == pytest.approx([0.06, 0.03, 0.06])
    assert [found[name].word for name in wanted] == ["not decided", "better", "not decided"]


@pytest.mark.parametrize(
    ("differences", "options", "reason"),
    [
        ([-0.1, -0.11], dict(first=[5.0, 5.1]), "fewer than 3 seeds"),
        ([-0.1, -0.11, -0.12], dict(chance_level=5.15, margin=0.1), "it is at chance level"),
        ([-0.5, -0.6, -0.7], dict(chance_level=5.25, margin=0.1), "the baseline is at chance l"),
        ([0.0] * 3, {}, "the differences of all seeds are equal"),
        ([0.01] * 3, {}, "the differences of all seeds are equal"),
    ],
)
def test_there_is_no_verdict(differences, options, reason):
    found = one(differences, **options)
    assert found.word == "no verdict" and found.reason.startswith(reason)
    assert found.p is found.interval is found.corrected is None
    assert found.difference == pytest.approx(np.mean(differences))


def test_an_arm_without_a_verdict_is_not_counted():
    good = [a - b for a, b in zip(FIRST, [0.1, 0.11, 0.12], strict=True)]
    arms = {"good": (good, FIRST), "stuck": ([6.0, 6.1, 6.2], FIRST)}
    found = judge(arms, higher_is_better=False, chance_level=6.2, margin=0.1)
    assert found["good"].corrected == found["good"].p
    assert found["stuck"].word == "no verdict"
