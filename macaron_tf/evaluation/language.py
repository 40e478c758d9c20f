"""Metrics of language models: perplexity, ROUGE, and the scores of few-shot choices."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]  # of predictions and labels


def perplexity(log_probs: Iterable[float], lengths: Iterable[int]) -> float:
    """exp(-sum log P / sum length): over all tokens of a set, not a mean over sentences.

    Args:
        log_probs: natural log P of each output (`decoding.score_ids`).
        lengths: tokens of each output, EOS included.

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

    Words are runs of letters a to z and digits, without regard to case and unstemmed, as in the
    package rouge-score without a stemmer; ROUGE-L takes a text as one sentence. Equal to that
    package's on 1,500 random pairs within 2e-16; it is not used, since it imports 1,800 modules
    of nltk in seconds for these lines.

    Raises:
        ValueError: no text, or unequal numbers of hypotheses and references.

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
    lengths = [0] * (len(theirs) + 1)  # lengths[n]: with the first n of theirs
    for word in ours:
        before = 0  # the entry up and to the left
        for n, other in enumerate(theirs, start=1):
            above = lengths[n]
            lengths[n] = before + 1 if word == other else max(above, lengths[n - 1])
            before = above
    return lengths[-1]


def overlap_f1(common: int, ours: int, theirs: int) -> float:
    """F1 of precision common / ours and recall common / theirs: 2 common / (ours + theirs)."""
    return 2.0 * common / (ours + theirs) if common else 0.0


def calibrated(scores: np.ndarray, content_free: np.ndarray) -> np.ndarray:
    """Contextual calibration: removes the model's bias towards an answer from its scores.

    Zhao et al. 2021, section 5, with W = diag(p_cf)^-1 and b = 0: the share of each choice among
    the choices is divided by its mean share over queries about nothing.

    Args:
        scores: (N, C) logarithms of each choice's probability, or their means over its tokens.
        content_free: (M, C), the same for M queries about nothing.

    Returns:
        (N, C) logarithms.
    """
    if not len(content_free):
        raise ValueError("calibration needs at least one query about nothing")
    # Where all choices are -inf they have equal shares, not NaN.
    scores, free = (_log_softmax(np.maximum(s, -1e30)) for s in (scores, content_free))
    return scores - np.log(np.maximum(np.exp(free).mean(axis=0), 1e-30))  # less (C,)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def chance(metric: Metric, labels: np.ndarray, choices: int) -> float:
    """The mean score of 200 sets of guesses, uniform among C choices; `labels` are (N,)."""
    guesses = np.random.default_rng(0).integers(0, choices, (200, len(labels)))
    return float(np.mean([metric(guess, labels) for guess in guesses]))


def majority(metric: Metric, labels: np.ndarray, known: np.ndarray) -> float:
    """The score of always predicting the most frequent of the `known` labels; `labels` are (N,)."""
    return metric(np.full(len(labels), np.bincount(known).argmax()), labels)
