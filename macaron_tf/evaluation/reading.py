"""SQuAD's metrics (Rajpurkar et al. 2016, 2018), as the official script of version 2.0 has them.

That of 1.1 differs only where an answer or a truth is nothing but punctuation and articles.
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

from macaron_tf.errors import UserError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Lower-cased, without ASCII punctuation, articles and superfluous white space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, truth: str) -> float:
    """1 where two normalized answers are equal, else 0."""
    return float(normalized_answer(answer) == normalized_answer(truth))


def token_f1(answer: str, truth: str) -> float:
    """F1 of the words of two normalized answers; where one has no words, 1 if neither has any."""
    found, wanted = normalized_answer(answer).split(), normalized_answer(truth).split()
    if not found or not wanted:
        return float(found == wanted)
    common = sum((collections.Counter(found) & collections.Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))


def score_answers(
    answers: Sequence[str],
    truths: Sequence[Sequence[str]],
    no_answer: np.ndarray | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Scores answers, as fractions: 1 is perfect. Of several right answers the nearest counts.

    Args:
        answers: the best answer to each of N questions; "" for none.
        truths: the right answers to each; none where there is no answer.
        no_answer: (N,) how much rather than that answer each question has none, for a task of
            unanswerable questions.
        threshold: above it, "" is the answer.

    Returns:
        "exact" and "f1"; with `no_answer` also both of the questions with an answer, "HasAns_...",
        and without, "NoAns_..." (where there are such), and "best_exact" and "best_f1", what the
        best thresholds, "best_exact_thresh" and "best_f1_thresh", would give.

    Raises:
        ValueError: the arguments are of unequal length, or empty.
    """
    if not len(answers) == len(truths) > 0:
        raise ValueError(f"{len(answers)} answers to {len(truths)} questions")
    # A truth of punctuation and articles alone is none, unless there is no other.
    wanted = [[t for t in options if normalized_answer(t)] or [""] for options in truths]
    metrics = {"exact": exact_match, "f1": token_f1}
    answerable = np.array([options != [""] for options in wanted])  # (N,)
    kept = np.ones(len(answers), bool)
    if no_answer is not None:
        if np.shape(no_answer) != (len(answers),):
            raise ValueError(f"{np.shape(no_answer)} no-answer scores of {len(answers)} questions")
        kept = np.asarray(no_answer) <= threshold
    scores, raw = {}, {}
    for name, metric in metrics.items():
        raw[name] = np.array(
            [max(metric(a, t) for t in options) for a, options in zip(answers, wanted, strict=True)]
        )
        # Without an answer a question without one is right, and no other.
        scores[name] = np.where(kept, raw[name], ~answerable)
    found = {name: float(values.mean()) for name, values in scores.items()}
    if no_answer is None:
        return found
    for prefix, members in (("HasAns", answerable), ("NoAns", ~answerable)):
        if members.any():
            found |= {f"{prefix}_{name}": float(v[members].mean()) for name, v in scores.items()}
    said = np.array([bool(answer) for answer in answers])
    for name, values in raw.items():
        best, at = _best_threshold(np.where(answerable, values, -1.0 * said), answerable, no_answer)
        found |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return found


def _best_threshold(
    gains: np.ndarray, answerable: np.ndarray, no_answer: np.ndarray
) -> tuple[float, float]:
    """The best mean score over thresholds, and the threshold.

    Args:
        gains: (N,) what answering each question adds to the sum.
        answerable: (N,) bool.
        no_answer: (N,).
    """
    order = np.argsort(no_answer, kind="stable")
    # sums[i]: the i questions that most surely have an answer are answered.
    sums = np.sum(~answerable) + np.concatenate([[0.0], np.cumsum(gains[order])])
    best = int(np.argmax(sums))
    threshold = float(np.asarray(no_answer)[order[best - 1]]) if best else 0.0
    return float(sums[best] / len(gains)), threshold


def score_tags(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 of entities, each of its type and with both its ends right.

    Args:
        predictions, truths: the tags of each sentence, IOB2.

    Returns:
        As fractions: "f1", "precision" and "recall" over all entities, and of each type that
        occurs "TYPE_f1" and so on, an entity being only what IOB2 says, from its B- on;
        "conlleval_f1", the F1 of CoNLL's own script, which takes an I- that follows nothing for a
        beginning.

    Raises:
        UserError: seqeval is not installed.
        ValueError: the numbers of sentences, or of a sentence's words, differ.
    """
    try:
        from seqeval.metrics import classification_report, f1_score
        from seqeval.scheme import IOB2
    except ImportError as error:
        raise UserError("scoring entities needs a package: pip install seqeval") from error
    predictions, truths = [*map(list, predictions)], [*map(list, truths)]
    if [*map(len, predictions)] != [*map(len, truths)]:
        raise ValueError("the predictions are not of the same sentences")
    metrics = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "conlleval_f1": 0.0}
    if all(tag == "O" for tags in (*predictions, *truths) for tag in tags):
        return metrics  # seqeval has no report on nothing
    report = classification_report(
        truths, predictions, output_dict=True, mode="strict", scheme=IOB2, zero_division=0
    )
    names = {"f1": "f1-score", "precision": "precision", "recall": "recall"}
    for kind, found in report.items():
        if kind == "micro avg" or not kind.endswith(" avg"):
            prefix = "" if kind == "micro avg" else f"{kind}_"
            metrics |= {prefix + name: float(found[theirs]) for name, theirs in names.items()}
    metrics["conlleval_f1"] = float(f1_score(truths, predictions, zero_division=0))
    return metrics
