"""From log-likelihoods of answers to predictions, and what guessing would score."""

from collections.abc import Callable

import numpy as np

from macaron_tf.checks import check_choice

NORMALIZATIONS = ("sum", "token")


def choice_scores(log_probs: np.ndarray, lengths: np.ndarray, normalization: str) -> np.ndarray:
    """How well each choice fits.

    Args:
        log_probs: (N, C) log P(choice | query), natural logarithms.
        lengths: (N, C) tokens of each choice.
        normalization: "sum", log P itself, or "token", log P / length, so that a long answer is
            not less likely for its length alone (Brown et al. 2020, section 2.4).

    Returns:
        (N, C) float64.

    Raises:
        ValueError: no such normalization.
    """
    check_choice("normalization", normalization, NORMALIZATIONS)
    log_probs = np.asarray(log_probs, np.float64)
    return log_probs / np.asarray(lengths) if normalization == "token" else log_probs


def calibrated(scores: np.ndarray, content_free: np.ndarray) -> np.ndarray:
    """Takes the model's leaning towards an answer, whatever is asked, out of its scores.

    Zhao et al. 2021, section 5, with W = diag(p_cf)^-1 and b = 0: the share of each choice among
    the choices is divided by its mean share over queries about nothing.

    Args:
        scores: (N, C), of `choice_scores`.
        content_free: (M, C), the same for M queries about nothing.

    Returns:
        (N, C) logarithms.
    """
    shares = np.exp(_log_shares(content_free)).mean(axis=0)  # (C,)
    return _log_shares(scores) - np.log(np.maximum(shares, 1e-30))


def _log_shares(scores: np.ndarray) -> np.ndarray:
    """(N, C) logarithms of each choice's share among the choices."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def chance(
    metric: Callable[[np.ndarray, np.ndarray], float],
    labels: np.ndarray,
    choices: int,
    draws: int = 200,
    seed: int = 0,
) -> float:
    """The mean score of guesses: each choice as likely as another.

    Args:
        metric: of predictions and labels.
        labels: (N,) the right choices.
        choices: C.
        draws: sets of guesses.
        seed: of the guesses.
    """
    rng = np.random.default_rng(seed)
    guesses = rng.integers(0, choices, (draws, len(labels)))
    return float(np.mean([metric(guess, labels) for guess in guesses]))


def majority(
    metric: Callable[[np.ndarray, np.ndarray], float],
    labels: np.ndarray,
    known: np.ndarray,
) -> float:
    """The score of always saying what is most frequent among known examples.

    Args:
        metric: of predictions and labels.
        labels: (N,) the right choices.
        known: labels of the examples that shots are drawn from.
    """
    return metric(np.full(len(labels), np.bincount(known).argmax()), labels)
