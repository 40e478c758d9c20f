"""ROUGE: how much of a reference's words, pairs of words and word order a summary has."""

import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile("[a-z0-9]+")


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: mean F1 over the texts, as fractions; papers print them times 100.

    Words are runs of letters a to z and digits, without regard to case and unstemmed, as in the
    package rouge-score where no stemmer is asked for. ROUGE-L takes a text for one sentence.

    Args:
        hypotheses, references: a text each, in the same order.

    Returns:
        `rouge1`, `rouge2` and `rougeL`, from 0 to 1.

    Raises:
        ValueError: no text, or not as many of the one as of the other.

    References: Lin 2004.
    """
    if not references or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    sums = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = (_WORD.findall(text.lower()) for text in (hypothesis, reference))
        sums["rouge1"] += _of_ngrams(ours, theirs, 1)
        sums["rouge2"] += _of_ngrams(ours, theirs, 2)
        sums["rougeL"] += _f1(_common_subsequence(ours, theirs), len(ours), len(theirs))
    return {name: value / len(references) for name, value in sums.items()}


def _of_ngrams(ours: list[str], theirs: list[str], n: int) -> float:
    counts = [
        Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (ours, theirs)
    ]
    return _f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def _common_subsequence(ours: list[str], theirs: list[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(theirs) + 1)  # with the first so many of theirs
    for word in ours:
        before = 0  # the entry up and to the left
        for place, other in enumerate(theirs, start=1):
            above = lengths[place]
            lengths[place] = before + 1 if word == other else max(above, lengths[place - 1])
            before = above
    return lengths[-1]


def _f1(common: int, ours: int, theirs: int) -> float:
    """Of precision and recall: 2 common / (ours + theirs)."""
    return 2.0 * common / (ours + theirs) if common else 0.0
