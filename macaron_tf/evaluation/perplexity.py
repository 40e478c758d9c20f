"""Perplexity from log-probabilities."""

import math
from collections.abc import Iterable


def perplexity(log_probs: Iterable[float], lengths: Iterable[int]) -> float:
    """exp(-sum log P / sum length): over all tokens of a set, not a mean over sentences.

    Args:
        log_probs: log P of each output, natural logarithm (`decoding.score_targets`).
        lengths: tokens of each output, EOS included.

    Returns:
        Perplexity a token, 1 or more.

    Raises:
        ValueError: there are no tokens.
    """
    tokens = sum(int(length) for length in lengths)
    if tokens == 0:
        raise ValueError("perplexity needs at least one token")
    return math.exp(-math.fsum(float(log_prob) for log_prob in log_probs) / tokens)
