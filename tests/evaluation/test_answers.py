"""Tests of SQuAD and CoNLL metrics against the official script and seqeval."""

import numpy as np
import pytest

from macaron_tf.evaluation.answers import score_answers, score_tags, score_words

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


@pytest.mark.parametrize("scheme", ["BI", "BIES", "BILU", "BMES", "BMEW"])
def test_entities_of_any_tags_are_seqeval_s(scheme):
    """Scores agree with seqeval for random tags, which may break the rules of the scheme.

    seqeval gets the letters of BIES in place of those of similar schemes.
    """
    metrics = pytest.importorskip("seqeval.metrics")
    schemes = pytest.importorskip("seqeval.scheme")
    form = schemes.IOB2 if scheme == "BI" else schemes.IOBES
    letters = dict(zip(scheme, "BIES", strict=False))
    rng = np.random.default_rng(1)
    tags = ["O", *(f"{letter}-{kind}" for letter in scheme for kind in ("PER", "LOC", "B-I", "O"))]
    translated = {tag: letters.get(tag[0], "O") + tag[1:] for tag in tags}
    scored = 0
    for _ in range(400):
        lengths = rng.integers(0, 9, rng.integers(1, 6))
        truths, predictions = ([rng.choice(tags, n).tolist() for n in lengths] for _ in range(2))
        for found, true in zip(predictions, truths, strict=True):
            if rng.random() < 0.5:
                found[: len(found) // 2] = true[: len(found) // 2]
        found = score_tags(predictions, truths, scheme)
        truths, predictions = (
            [[translated[tag] for tag in one] for one in side] for side in (truths, predictions)
        )
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


def test_words_of_which_no_tag_or_half_of_the_tags_are_right():
    assert score_words([], []) == score_words([[]], [[]]) == {"accuracy": 0.0}
    assert score_words([["O", "B"]], [["O", "O"]]) == {"accuracy": 0.5}
