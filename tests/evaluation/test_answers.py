"""Tests of SQuAD and CoNLL metrics against manual results, the official script and seqeval."""

import numpy as np
import pytest

from macaron_tf.evaluation.answers import score_answers, score_tags, score_words


def one(answer: str, truth: str) -> tuple[float, float]:
    """Returns the exact match and F1 of an answer, given one reference answer."""
    return tuple(score_answers([answer], [[truth]]).values())


@pytest.mark.parametrize(
    ("answer", "truth", "exact", "f1"),
    [
        (" The  Cat's, a U.S. \u201ctoy\u201d! An ", "cats us \u201ctoy\u201d", 1, 1),
        ("another theory", "theory", 0, 2 / 3),  # articles are removed as words only
        ("The Denver Broncos.", "denver broncos", 1, 1),
        # 2 common words of 3 and of 2: P = 2/3, R = 1.
        ("old Denver Broncos", "Denver Broncos", 0, 0.8),
        # "a" is an article, and "cat cat" has one "cat" too many: P = 1/2, R = 1.
        ("a cat cat", "the cat", 0, 2 / 3),
        ("dog", "cat", 0, 0),
        ("", "the", 1, 1),
        ("", "cat", 0, 0),
        ("cat", "", 0, 0),
    ],
)
def test_answers_by_hand(answer, truth, exact, f1):
    assert one(answer, truth) == (exact, pytest.approx(f1))


def test_of_several_truths_the_nearest_counts():
    found = score_answers(["in Rome", "1999", ""], [["Rome", "in Rome, Italy"], ["1999."], ["x"]])
    assert found == {"exact": pytest.approx(1 / 3), "f1": pytest.approx((0.8 + 1 + 0) / 3)}


def test_questions_without_an_answer():
    answers = ["Rome", "Oslo", "cat", "dog"]
    truths = [["Rome"], ["Oslo fjord"], [], []]
    unlikely = np.array([-3.0, 1.0, 0.5, 2.0])
    found = score_answers(answers, truths, unlikely)
    # At threshold 0, "Rome" is right, "Oslo" is withheld, and the others are rightly withheld.
    assert found["exact"] == found["f1"] == pytest.approx(3 / 4)
    assert (found["HasAns_exact"], found["HasAns_f1"]) == (0.5, 0.5)
    assert (found["NoAns_exact"], found["NoAns_f1"]) == (1, 1)
    # Up to 0.5: Rome 1 + cat wrong, dog right = 2. Up to 1.0: Oslo's F1 of 2/3 is added.
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(3 / 4), -3.0)
    assert (found["best_exact"], found["best_exact_thresh"]) == (pytest.approx(3 / 4), -3.0)
    found = score_answers(answers, truths, unlikely, threshold=1.0)
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
    # If all answerable questions are likelier, the best threshold lies between the groups.
    found = score_answers(answers, truths, np.array([-3.0, -1.0, 0.5, 2.0]))
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx((3 + 2 / 3) / 4), -1.0)
    # If every answer is wrong, withholding all is best.
    found = score_answers(["x"], [[]], np.array([-5.0]))
    assert (found["best_f1"], found["best_f1_thresh"]) == (1, 0)
    assert "HasAns_f1" not in found
    # A reference of articles alone counts as no answer.
    assert "HasAns_f1" not in score_answers(["x"], [["the"]], np.array([-5.0]))
    # An empty answer to an unanswerable question is right at any threshold.
    assert score_answers([""], [[]], np.array([-5.0]))["f1"] == 1


# Articles, look-alikes of articles, and punctuation and white space of ASCII and Unicode.
ODD_WORDS = (
    *("a", "An", "the", "THE.", "a-n", "the-cat", "cat", "Cat,", "cats", "don't", "U.S.", "1,000"),
    *("-", "...", "\u2013", "\u2019", "\u201cthe\u201d", "\u00a0a\u00a0", "the\u2009cat", "\t"),
    *("", "_a_", "\u0130", "stra\u00dfe", "\uff41", "\u00e9", "e\u0301", "\u4e2d", "the\u0301"),
)


def test_scores_are_the_official_script_s():
    official = pytest.importorskip("official.nlp.tools.squad_evaluate_v2_0")
    rng = np.random.default_rng(1)

    def text() -> str:
        return " ".join(rng.choice(ODD_WORDS, rng.integers(0, 5)))

    for _ in range(400):
        count = rng.integers(1, 13)
        answers = [text() for _ in range(count)]
        truths = [
            [answer if rng.random() < 0.3 else text() for _ in range(rng.integers(0, 4))]
            for answer in answers
        ]
        likely = rng.choice([-1.5, 0.0, 0.5, 2.0], count)  # with ties
        threshold = float(rng.choice([-2.0, 0.0, 0.5, 3.0]))
        questions = [
            {"id": i, "answers": [{"text": t} for t in one if official._normalize_answer(t)]}
            for i, one in enumerate(truths)
        ]
        given = [{"paragraphs": [{"qas": questions}]}], dict(enumerate(answers))
        plain = official.evaluate(*given)
        assert score_answers(answers, truths) == pytest.approx(
            {name: plain[name] / 100 for name in ("exact", "f1")}, abs=1e-12
        )
        # The script withholds an answer above 1.
        theirs = official.evaluate(*given, {i: 2.0 * (v > threshold) for i, v in enumerate(likely)})
        best = official.evaluate(*given, dict(enumerate(likely.tolist())))
        parts = [f"{part}{name}" for part in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")]
        expected = {name: theirs[name] / 100 for name in parts if name in theirs}
        for name in ("exact", "f1"):
            expected[f"best_{name}"] = best[f"final_{name}"] / 100
            expected[f"best_{name}_thresh"] = best[f"final_{name}_thresh"]
        found = score_answers(answers, truths, likely, threshold)
        assert found == pytest.approx(expected, abs=1e-12)


def tags(*sentences):
    return [sentence.split() for sentence in sentences]


def test_entities_by_hand():
    truths = tags("B-PER I-PER O B-LOC", "B-ORG O B-LOC B-LOC", "O O")
    predictions = tags("B-PER I-PER O B-ORG", "B-ORG O B-LOC I-LOC", "O B-PER")
    found = score_tags(predictions, truths)
    # Predicted: PER right, ORG wrong, ORG right, one long LOC wrong, PER wrong. 2 of 5 are right,
    # and 5 are true.
    assert found["precision"] == found["recall"] == pytest.approx(2 / 5)
    assert found["f1"] == pytest.approx(2 / 5) == found["conlleval_f1"]
    assert (found["PER_precision"], found["PER_recall"]) == (0.5, 1)
    assert (found["ORG_precision"], found["ORG_recall"]) == (0.5, 1)
    assert (found["LOC_precision"], found["LOC_recall"], found["LOC_f1"]) == (0, 0, 0)


def test_an_entity_begins_with_b():
    truths, predictions = tags("O B-PER I-PER"), tags("O I-PER I-PER")
    found = score_tags(predictions, truths)
    assert found["f1"] == 0 and found["conlleval_f1"] == 1
    assert score_tags(truths, truths)["f1"] == 1


@pytest.mark.parametrize("scheme", ["BIES", "BILU", "BMES", "BMEW"])
def test_entities_count_the_same_in_every_scheme(scheme):
    """Tags in BIES and similar schemes score the same as the equivalent IOB2 tags.

    An entity without an end tag does not count.
    """
    begin, inner, last, single = scheme

    def side(rng) -> list[list[tuple[str, str]]]:
        """Returns sentences of 12 words, each word as (IOB2 tag, tag in `scheme`)."""
        found = []
        for _ in range(30):
            words = []
            for length in (1, 2, 3, 4, 2):
                kind, cut = rng.choice(["", "PER", "LOC"]), rng.integers(1, length + 1)
                for part in filter(None, (cut, length - cut)):
                    letters = begin + inner * (part - 2) + last if part > 1 else single
                    ours = ["B", *"I" * (part - 1)]
                    words += [
                        (f"{a}-{kind}", f"{b}-{kind}") if kind else ("O", "O")
                        for a, b in zip(ours, letters, strict=True)
                    ]
            found.append(words)
        return found

    rng = np.random.default_rng(1)
    sides = side(rng), side(rng)
    iob2, theirs = (
        [[[tags[number] for tags in words] for words in one] for one in sides] for number in (0, 1)
    )
    expected = score_tags(*iob2)
    assert 0.1 < expected["f1"] < 0.9
    assert score_tags(*theirs, scheme) == pytest.approx(expected)
    assert score_tags(theirs[1], theirs[1], scheme)["f1"] == 1
    endless = score_tags(tags("B-PER O"), tags(f"{begin}-PER {last}-PER"), scheme)
    assert endless["f1"] == endless["precision"] == 0


@pytest.mark.parametrize("scheme", ["BI", "BIES"])
def test_entities_of_any_tags_are_seqeval_s(scheme):
    """Scores agree with seqeval for random tags, which may break the rules of the scheme."""
    metrics = pytest.importorskip("seqeval.metrics")
    schemes = pytest.importorskip("seqeval.scheme")
    form = schemes.IOB2 if scheme == "BI" else schemes.IOBES
    rng = np.random.default_rng(1)
    tags = ["O", *(f"{letter}-{kind}" for letter in scheme for kind in ("PER", "LOC", "B-I", "O"))]
    scored = 0
    for _ in range(400):
        lengths = rng.integers(0, 9, rng.integers(1, 6))
        truths, predictions = ([rng.choice(tags, n).tolist() for n in lengths] for _ in range(2))
        for found, true in zip(predictions, truths, strict=True):
            if rng.random() < 0.5:
                found[: len(found) // 2] = true[: len(found) // 2]
        found = score_tags(predictions, truths, scheme)
        lenient = metrics.f1_score(truths, predictions, zero_division=0)
        assert found.pop("conlleval_f1") == pytest.approx(lenient, abs=1e-12)
        if not any(schemes.Entities(side, form).unique_tags for side in (truths, predictions)):
            assert {*found.values()} == {0.0}
            continue  # seqeval fails without entities
        options = {"mode": "strict", "scheme": form, "zero_division": 0}
        report = metrics.classification_report(truths, predictions, output_dict=True, **options)
        expected = {}
        for kind, row in report.items():
            if kind == "micro avg" or not kind.endswith(" avg"):
                prefix = "" if kind == "micro avg" else f"{kind}_"
                expected |= {
                    prefix + name.removesuffix("-score"): float(row[name])
                    for name in ("f1-score", "precision", "recall")
                }
        assert found == pytest.approx(expected, abs=1e-12)
        scored += 0 < found["f1"] < 1
    assert scored > 100


def test_nothing_found_is_nothing():
    assert score_words([], []) == score_words([[]], [[]]) == {"accuracy": 0.0}
    assert score_words(tags("O B"), tags("O O")) == {"accuracy": 0.5}
    found = score_tags(tags("O O"), tags("O O"))
    assert set(found.values()) == {0.0} and {"f1", "precision", "recall"} <= set(found)
    found = score_tags(tags("O O", ""), tags("O B-PER", ""))
    assert (found["f1"], found["PER_recall"]) == (0, 0)
