"""Tests of perplexity, ROUGE, similarity, answers, tags and verdicts."""
# ruff: noqa: RUF001 -- Greek is Greek here

import math
import re

import numpy as np
import pytest
import scipy.stats

from macaron_tf.evaluation import language, similarity
from macaron_tf.evaluation.answers import score_answers, score_tags, score_words
from macaron_tf.evaluation.glue import accuracy, matthews
from macaron_tf.evaluation.verdict import judge
from tests.harness import normal, rejects


def test_uniform_model_has_the_vocabularys_size():
    one = math.log(1 / 50)
    assert language.perplexity([4 * one, one], [4, 1]) == pytest.approx(50)


def test_no_tokens_and_hopeless_ones():
    rejects("token", language.perplexity, [], [])
    assert language.perplexity([-8000.0], [10]) == math.inf
    assert language.perplexity([-math.inf, -1.0], [1, 1]) == math.inf
    assert language.perplexity([-1e308] * 3, [1] * 3) == math.inf


def test_scores_are_those_of_lins_examples():
    """ROUGE-L is 3/4 and 2/4 in the examples of Lin 2004, section 3.1.

    ROUGE-2 does not distinguish the two examples.
    """
    reference = "police killed the gunman"
    one = language.rouge(["Police end the gunman."], [reference])
    other = language.rouge(["the gunman end police"], [reference])
    assert one["rougeL"] == pytest.approx(0.75) and other["rougeL"] == pytest.approx(0.5)
    assert one["rouge1"] == other["rouge1"] == pytest.approx(0.75)
    assert one["rouge2"] == other["rouge2"] == pytest.approx(1 / 3)


def test_counts_are_clipped_lengths_weigh_and_texts_are_averaged():
    found = language.rouge(["a a a b", "", "x"], ["a b", "c", "X!"])
    assert found["rouge1"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)
    assert found["rouge2"] == pytest.approx((2 * 1 / 4 + 0 + 0) / 3)
    assert found["rougeL"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)


def test_the_first_sentences_are_the_baseline():
    text = "A dog, e.g. Rex, ran.  He barked!\nNo cat came\nThe end. 完了。 ほんとう? Yes."
    sentences = ["A dog, e.g.", "Rex, ran.", "He barked!", "No cat came", "The end.", "完了。"]
    assert [language.lead(text, n) for n in (0, 1, 6)] == ["", "A dog, e.g.", " ".join(sentences)]
    assert language.lead(" \n", 3) == ""


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("Кошка сидит на окне.", "Собака сидит на полу!"),
        ("Η γάτα είναι εδώ", "η σκύλα είναι εκεί"),
        ("बिल्ली यहाँ है आज", "कुत्ता यहाँ था आज"),
        ("Le café était fermé", "le cafe\u0301 est ouvert"),
        ("القط على النافذة اليوم", "الكلب على الأرض اليوم"),
    ],
)
def test_words_of_every_script_count(text, half):
    assert {*language.rouge([text], [text]).values()} == {1.0}
    assert language.rouge([half], [text])["rouge1"] == pytest.approx(0.5)
    assert language.rouge(["我爱猫。"], ["我爱猫!"])["rouge1"] == 1.0


def test_english_is_scored_as_by_rouge_score():
    """Its own tokenizer stems too. Sentences are lines in its summary-level ROUGE-L."""
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    draw = np.random.default_rng(0)
    pieces = "It's a_b C3PO—no, 3.5%. of U.S.! (x)\t\u2018quoted\u2019 e-mails running ran? runs"
    for _ in range(100):
        first, second = (" ".join(draw.permutation(pieces.split())) for _ in range(2))
        lines = (re.sub(r"(?<=[.!?]) ", "\n", text) for text in (second, first))
        expected = {name: found.fmeasure for name, found in scorer.score(*lines).items()}
        assert language.rouge([first], [second]) == pytest.approx(expected, abs=1e-12)


def test_guesses_and_the_majority():
    labels = np.array([0] * 30 + [1] * 70)
    known = np.array([1, 1, 0])
    assert abs(language.chance(accuracy, labels, 2) - 0.5) < 0.02
    assert abs(language.chance(matthews, labels, 2)) < 0.03
    assert language.majority(accuracy, labels, known) == 0.7
    assert language.majority(matthews, labels, known) == 0.0


def test_cosines_are_what_the_formula_says():
    u, v = normal(20, 8), normal(20, 8, seed=1) * 7
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(u, v, strict=True)]
    np.testing.assert_allclose(similarity.cosines(u, v), expected, atol=1e-6)
    assert (similarity.unit_vectors(np.zeros((2, 4))) == 0).all()


def test_correlations_follow_the_order_and_the_line():
    angles, u = np.array([0.1, 1.4, 0.7, 3.0]), np.tile([1.0, 0.0], (4, 1))
    v = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = similarity.similarity_metrics(u, v, np.array([5.0, 2.0, 3.0, 0.0]))
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(np.corrcoef(np.cos(angles), [5, 2, 3, 0])[0, 1])
    found = similarity.similarity_metrics(u, v, np.array([0.0, 3, 2, 5]))
    assert found["spearman"] == pytest.approx(-1)
    v[0] = np.nan
    assert np.isnan(list(similarity.similarity_metrics(u, v, angles).values())).all()


def test_triplets_are_right_where_the_positive_is_nearer():
    anchor, near, far = np.zeros((3, 2)), np.full((3, 2), 1.0), np.full((3, 2), 2.0)
    assert similarity.triplet_accuracy(anchor, near, far) == 1
    assert similarity.triplet_accuracy(anchor, far, near) == 0
    far[0] = 0.5
    assert similarity.triplet_accuracy(anchor, near, far) == pytest.approx(2 / 3)
    assert np.isnan(similarity.triplet_accuracy(anchor * np.nan, near, far))


def test_of_no_vectors_and_of_one_pair_the_scores_are_0():
    nothing, one = np.zeros((0, 2)), np.ones((1, 2))
    assert similarity.triplet_accuracy(nothing, nothing, nothing) == 0
    for vectors in (nothing, one):
        found = similarity.similarity_metrics(vectors, vectors, vectors[:, 0])
        assert found == {"spearman": 0, "pearson": 0}


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
