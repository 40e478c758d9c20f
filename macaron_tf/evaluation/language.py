"""Metrics for language models: perplexity, ROUGE and chance levels."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]  # (predictions, labels) -> value


def perplexity(log_probs: Iterable[float], lengths: Iterable[int]) -> float:
    """Computes the perplexity over all tokens, exp(-sum log P / sum length), perhaps infinite.

    `log_probs` are natural logarithms, as `decoding.score_ids` returns, and `lengths` include EOS.
    """
    tokens = sum(int(length) for length in lengths)
    if tokens == 0:
        raise ValueError("perplexity needs at least one token: pass lengths whose sum is above 0")
    try:
        return math.exp(-math.fsum(float(log_prob) for log_prob in log_probs) / tokens)
    except OverflowError:  # exp(709.8) is the largest float64
        return math.inf


def _words(text: str) -> list[str]:
    """Splits a text into lower-case runs of letters, combining marks and numbers of any script."""
    text = unicodedata.normalize("NFC", text.lower())
    spaced = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return [word for word in spaced.split() if any(map(str.isalnum, word))]


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Computes the mean F1 "rouge1", "rouge2" and "rougeL", as fractions from 0 to 1.

    Words are runs of letters, combining marks and numbers of any script, lower-cased and not
    stemmed. ROUGE-L treats a text as one sentence. On 1,500 random pairs of ASCII texts, the
    results differ by at most 2e-16 from those of the package rouge-score without a stemmer, which
    reads only ASCII, and which imports nltk (1,800 modules) in seconds.

    References: Lin 2004.
    """
    sums = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        first, second = map(_words, (hypothesis, reference))
        sums["rouge1"] += ngram_f1(first, second)
        sums["rouge2"] += ngram_f1(first, second, 2)
        sums["rougeL"] += overlap_f1(_common_subsequence(first, second), len(first), len(second))
    return {name: value / len(references) for name, value in sums.items()}


def ngram_f1(first: list[str], second: list[str], n: int = 1) -> float:
    """Computes the F1 of the n-grams that two lists of words have in common."""
    counts = [
        Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (first, second)
    ]
    return overlap_f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def _common_subsequence(first: list[str], second: list[str]) -> int:
    """Computes the length of the longest common subsequence of two lists of words."""
    lengths = [0] * (len(second) + 1)  # lengths[n] is the result for the first n of `second`
    for word in first:
        before = 0  # the value of lengths[n - 1] without this word
        for n, other in enumerate(second, start=1):
            above = lengths[n]
            lengths[n] = before + 1 if word == other else max(above, lengths[n - 1])
            before = above
    return lengths[-1]


def overlap_f1(common: int, predicted: int, true: int) -> float:
    """Computes F1 = 2 `common` / (`predicted` + `true`) from counts, or 0 if `common` is 0."""
    return 2.0 * common / (predicted + true) if common else 0.0


def chance(metric: Metric, labels: np.ndarray, choices: int) -> float:
    """Computes the chance level of a metric, as the mean score of 200 sets of uniform guesses.

    All of the `choices` classes are guessed with equal probability.
    """
    guesses = np.random.default_rng(0).integers(0, choices, (200, len(labels)))
    return float(np.mean([metric(guess, labels) for guess in guesses]))


def majority(metric: Metric, labels: np.ndarray, training_labels: np.ndarray) -> float:
    """Computes the score on `labels` if every prediction is the majority of `training_labels`."""
    return metric(np.full(len(labels), np.bincount(training_labels).argmax()), labels)
