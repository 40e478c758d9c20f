import numpy as np
import pytest
import sacrebleu

from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import (
    TranslationMetric,
    evaluate_translations,
    paired_bootstrap,
)

WORDS = np.array(["der", "die", "hund", "katze", "haus", "rennt", "rote", "und", "."])


def corpus(sentences=80, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(6, 15))) for _ in range(sentences)]


def damaged(lines, rate, seed):
    """Lines with a share of the words replaced."""
    rng = np.random.default_rng(seed)
    result = []
    for line in lines:
        words = np.array(line.split())
        hit = rng.random(len(words)) < rate
        result.append(" ".join(np.where(hit, rng.choice(WORDS, len(words)), words)))
    return result


def test_scores_are_sacrebleus():
    references = corpus()
    a, b = damaged(references, 0.3, 1), damaged(references, 0.2, 2)
    found = paired_bootstrap(a, b, references, resamples=50)
    settings = {"tokenize": "none", "smooth_method": "none"}
    for value, lines in ((found.bleu_a, a), (found.bleu_b, b)):
        expected = sacrebleu.corpus_bleu(lines, [references], force=True, **settings).score
        assert value == pytest.approx(expected)
    assert found.difference == pytest.approx(found.bleu_b - found.bleu_a)
    for value, (low, high) in (
        (found.bleu_a, found.interval_a),
        (found.bleu_b, found.interval_b),
        (found.difference, found.interval),
    ):
        assert low < value < high


def test_identical_systems():
    references = corpus()
    system = damaged(references, 0.3, 1)
    found = paired_bootstrap(system, system, references, resamples=200)
    assert found.p_value == 1.0
    assert found.difference == 0.0
    assert found.interval == (0.0, 0.0)


def test_a_clear_difference_in_both_directions():
    references = corpus()
    good, bad = damaged(references, 0.1, 1), damaged(references, 0.4, 2)
    one, other = (
        paired_bootstrap(x, y, references, resamples=300) for x, y in ((bad, good), (good, bad))
    )
    assert one.p_value == other.p_value == pytest.approx(1 / 301)
    assert one.interval[0] > 0 > other.interval[1]


def test_equally_good_systems_are_not_told_apart():
    references = corpus(200)
    p_values = [
        paired_bootstrap(
            damaged(references, 0.3, 2 * i), damaged(references, 0.3, 2 * i + 1), references
        ).p_value
        for i in range(1, 7)
    ]
    assert np.median(p_values) > 0.1


def test_seeds():
    references = corpus()
    a, b = damaged(references, 0.3, 1), damaged(references, 0.28, 2)
    first, again, other = (
        paired_bootstrap(a, b, references, resamples=150, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again
    assert first.interval != other.interval


def test_case_and_text():
    references = corpus(10)
    upper = [line.upper() for line in references]
    found = paired_bootstrap(
        upper, references, references, TranslationMetric(lowercase=True), resamples=10
    )
    assert found.difference == 0.0
    assert "p = 1.0000" in str(found)


def test_moses_tokens_are_scored_as_evaluate_scores_them():
    references = ["it &apos;s a &quot; red &quot; house , is it ?", "the dog runs &amp; eats ."] * 3
    system = ["it &apos;s a &quot; red &quot; house .", "the dogs run &amp; eat ."] * 3
    metric = TranslationMetric("en", tokenized=True)
    scores = evaluate_translations(system, references, metric)
    found = paired_bootstrap(system, references, references, metric, resamples=5)
    assert found.bleu_a == pytest.approx(scores.tokenized_bleu)


def test_bad_input_is_refused():
    for reason, lines, options in (
        ("references", (["a"], ["a", "b"], ["a"]), {}),
        ("empty", ([], [], []), {}),
        ("seed=-1", (["a"], ["b"], ["a"]), {"seed": -1}),
        ("resamples", (["a"], ["b"], ["a"]), {"resamples": 0}),
    ):
        with pytest.raises(UserError, match=reason):
            paired_bootstrap(*lines, **options)
