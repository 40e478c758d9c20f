"""SQuAD's metrics: cases worked by hand, and a second computation written for the test."""

import math

import numpy as np
import pytest

from macaron_tf.evaluation.reading import (
    exact_match,
    normalized_answer,
    score_answers,
    token_f1,
)


def test_normalization():
    assert (
        normalized_answer(" The  Cat's, a U.S. \u201ctoy\u201d! An ") == "cats us \u201ctoy\u201d"
    )
    assert normalized_answer("another theory") == "another theory"
    assert normalized_answer("the a an") == ""


def test_by_hand():
    assert exact_match("The Denver Broncos.", "denver broncos") == 1
    assert exact_match("Denver", "denver broncos") == 0
    # 2 common words of 3 and of 2: P = 2/3, R = 1.
    assert token_f1("old Denver Broncos", "Denver Broncos") == pytest.approx(0.8)
    # "a" is an article; "cat cat" holds one "cat" too many: P = 1/2, R = 1.
    assert token_f1("a cat cat", "the cat") == pytest.approx(2 / 3)
    assert token_f1("dog", "cat") == 0
    assert token_f1("", "the") == 1 and token_f1("", "cat") == 0 == token_f1("cat", "")


def test_of_several_truths_the_nearest_counts():
    found = score_answers(["in Rome", "1999", ""], [["Rome", "in Rome, Italy"], ["1999."], ["x"]])
    assert found == {"exact": pytest.approx(1 / 3), "f1": pytest.approx((0.8 + 1 + 0) / 3)}


def test_questions_without_an_answer():
    answers = ["Rome", "Oslo", "cat", "dog"]
    truths = [["Rome"], ["Oslo fjord"], [], []]
    unlikely = np.array([-3.0, 1.0, 0.5, 2.0])
    found = score_answers(answers, truths, unlikely)
    # At 0: "Rome" is right, "Oslo" withheld, both others rightly withheld.
    assert found["exact"] == found["f1"] == pytest.approx(3 / 4)
    assert (found["HasAns_exact"], found["HasAns_f1"]) == (0.5, 0.5)
    assert (found["NoAns_exact"], found["NoAns_f1"]) == (1, 1)
    # Up to 0.5: Rome 1 + cat wrong, dog right = 2; up to 1.0: + Oslo's F1 of 2/3.
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(3 / 4), -3.0)
    assert (found["best_exact"], found["best_exact_thresh"]) == (pytest.approx(3 / 4), -3.0)
    found = score_answers(answers, truths, unlikely, threshold=1.0)
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
    # With all the answerable ones likelier, the threshold lies between.
    found = score_answers(answers, truths, np.array([-3.0, -1.0, 0.5, 2.0]))
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx((3 + 2 / 3) / 4), -1.0)
    # Nothing answered is best where every answer is wrong.
    found = score_answers(["x"], [[]], np.array([-5.0]))
    assert (found["best_f1"], found["best_f1_thresh"]) == (1, 0)
    assert "HasAns_f1" not in found
    # An empty answer to a question without one is right at any threshold.
    assert score_answers([""], [[]], np.array([-5.0]))["f1"] == 1


def _tried(answers, truths, unlikely, metric):
    """The best mean over all thresholds, each tried from scratch."""
    best, at = -1.0, math.nan
    for threshold in (-math.inf, *sorted(unlikely)):
        said = [a if u <= threshold else "" for a, u in zip(answers, unlikely, strict=True)]
        scores = [
            max(metric(a, t) for t in options or [""])
            for a, options in zip(said, truths, strict=True)
        ]
        if np.mean(scores) > best + 1e-12:
            best, at = float(np.mean(scores)), threshold
    return best, (0.0 if at == -math.inf else at)


def test_a_second_computation_says_the_same():
    rng = np.random.default_rng(0)
    words = ["the", "cat", "saw", "a", "dog", "Rome", "in", "old,"]

    def text(least):
        return " ".join(rng.choice(words, rng.integers(least, 4)))

    for _ in range(20):
        count = int(rng.integers(2, 30))
        answers = [text(0) for _ in range(count)]
        truths = [
            [f"{text(1)} cat" for _ in range(rng.integers(1, 4))] if rng.random() < 0.6 else []
            for _ in range(count)
        ]
        unlikely = rng.standard_normal(count)
        found = score_answers(answers, truths, unlikely)
        for name, metric in (("exact", exact_match), ("f1", token_f1)):
            best, threshold = _tried(answers, truths, unlikely, metric)
            # The official search counts an answer of articles alone to no question as wrong.
            if all(bool(a) == bool(normalized_answer(a)) for a in answers):
                assert found[f"best_{name}"] == pytest.approx(best)
                assert found[f"best_{name}_thresh"] == pytest.approx(threshold)
            said = [a if u <= 0 else "" for a, u in zip(answers, unlikely, strict=True)]
            mean = np.mean(
                [max(metric(a, t) for t in o or [""]) for a, o in zip(said, truths, strict=True)]
            )
            assert found[name] == pytest.approx(mean)


def test_bad_arguments():
    with pytest.raises(ValueError, match="1 answers to 2"):
        score_answers(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="0 answers"):
        score_answers([], [])
    with pytest.raises(ValueError, match="no-answer scores"):
        score_answers(["a"], [["a"]], np.zeros(2))
