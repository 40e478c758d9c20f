"""Tests of perplexity, ROUGE and chance levels."""
# ruff: noqa: RUF001 -- Greek is Greek here

import math
import re

import numpy as np
import pytest

from macaron_tf.evaluation import language
from macaron_tf.evaluation.glue import accuracy, matthews
from tests.harness import rejects


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
    one = language.rouge(["Police kill the gunman."], [reference])
    other = language.rouge(["the gunman kill police"], [reference])
    assert one["rougeL"] == pytest.approx(0.75) and other["rougeL"] == pytest.approx(0.5)
    assert one["rouge1"] == other["rouge1"] == pytest.approx(0.75)
    assert one["rouge2"] == other["rouge2"] == pytest.approx(1 / 3)


def test_counts_are_clipped_lengths_weigh_and_texts_are_averaged():
    found = language.rouge(["a a a b", "", "x"], ["a b", "c", "X!"])
    assert found["rouge1"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)
    assert found["rouge2"] == pytest.approx((2 * 1 / 4 + 0 + 0) / 3)
    assert found["rougeL"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)


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
    assert language.rouge([text], [text]) == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
    assert language.rouge([half], [text])["rouge1"] == pytest.approx(0.5)
    assert language.rouge(["我爱猫。"], ["我爱猫!"])["rouge1"] == 1.0


def test_english_words_are_runs_of_ascii_letters_and_digits():
    long = "It's a_b C3PO—no, 3.5% of U.S. (x)\t\u2018quoted\u2019 \u2764\ufe0f e-mail"
    for text in (long, "", "..."):
        words = re.findall("[a-z0-9]+", text.lower())
        for other in ("it s a b of no quoted mail", "3 5"):
            found = language.rouge([text], [other])
            assert found == language.rouge([" ".join(words)], [other])


def test_guesses_and_the_majority():
    labels = np.array([0] * 30 + [1] * 70)
    known = np.array([1, 1, 0])
    assert abs(language.chance(accuracy, labels, 2) - 0.5) < 0.02
    assert abs(language.chance(matthews, labels, 2)) < 0.03
    assert language.majority(accuracy, labels, known) == 0.7
    assert language.majority(matthews, labels, known) == 0.0
