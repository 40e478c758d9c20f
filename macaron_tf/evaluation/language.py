"""Metrics for language models: perplexity, ROUGE and chance levels."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from macaron_tf.errors import needed

Metric = Callable[[np.ndarray, np.ndarray], float]  # (predictions, labels) -> value
_SENTENCE_END = re.compile("(?<=[.!?\u2026\u3002\uff01\uff1f])\\s+")


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


class _Words:
    """Tokenizer of rouge-score: runs of letters, combining marks and numbers of any script.

    Words are lower-cased, and those of more than three ASCII letters are stemmed by Porter, as in
    rouge-score's own tokenizer, which reads only ASCII.
    """

    def __init__(self):
        from nltk.stem.porter import PorterStemmer

        self._stem = PorterStemmer().stem

    def tokenize(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFC", text.lower())
        spaced = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
        words = (word for word in spaced.split() if any(map(str.isalnum, word)))
        return [self._stem(w) if w.isascii() and len(w) > 3 else w for w in words]


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Computes the mean F1 "rouge1", "rouge2", "rougeL" and "rougeLsum", from 0 to 1.

    The package rouge-score counts; see `_Words`. ROUGE-L treats a text as one sentence, and
    ROUGE-Lsum takes the union over the sentences, as papers on summaries do. A sentence ends at a
    line end, or at a full stop, an exclamation mark or a question mark before white space.

    References: Lin 2004.
    """
    with needed("ROUGE"):  # imported here, because nltk takes seconds
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], tokenizer=_Words())
    lines = (
        [_SENTENCE_END.sub("\n", text) for text in pair]
        for pair in zip(references, hypotheses, strict=True)
    )
    scores = [scorer.score(*pair) for pair in lines]
    return {name: float(np.mean([one[name].fmeasure for one in scores])) for name in scores[0]}


def lead(text: str, count: int) -> str:
    """Returns the first `count` sentences of a text: the usual baseline of a summary."""
    lines = _SENTENCE_END.sub("\n", text.strip()).splitlines()
    return " ".join([line for line in lines if line.strip()][:count])


def word_f1(first: list[str], second: list[str]) -> float:
    """Computes the F1 of the words that two lists have in common."""
    return overlap_f1((Counter(first) & Counter(second)).total(), len(first), len(second))


def overlap_f1(common: int, predicted: int, true: int) -> float:
    """Computes F1 = 2 `common` / (`predicted` + `true`) from counts, or 0 if `common` is 0."""
    return 2.0 * common / (predicted + true) if common else 0.0


def chance(metric: Metric, labels: np.ndarray, choices: int) -> float:
    """Computes the chance level of a metric, as the mean score of 200 sets of uniform guesses."""
    guesses = np.random.default_rng(0).integers(0, choices, (200, len(labels)))
    return float(np.mean([metric(guess, labels) for guess in guesses]))


def majority(metric: Metric, labels: np.ndarray, training_labels: np.ndarray) -> float:
    """Computes the score on `labels` if every prediction is the majority of `training_labels`."""
    return metric(np.full(len(labels), np.bincount(training_labels).argmax()), labels)
