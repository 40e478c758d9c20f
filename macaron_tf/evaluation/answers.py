"""Metrics of question answering (SQuAD's) and of tagging (CoNLL's)."""

import itertools
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from macaron_tf.evaluation.language import overlap_f1

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # of ASCII only
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_AS_BIOES = str.maketrans("MLUW", "IESS")  # letters of BILOU, BMES and BMEWO


def score_answers(
    answers: Sequence[str],
    truths: Sequence[Sequence[str]],
    no_answer: np.ndarray | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Scores answers by the metrics of SQuAD 2.0's official script, as fractions: 1 is perfect.

    Exact match and the F1 of words compare lower-cased texts without punctuation and articles. If
    there are several right answers, the most similar one counts. SQuAD 1.1's script only differs if
    an answer consists of nothing but punctuation and articles.

    Args:
        answers: the predicted answer to each of N questions; "": no answer.
        truths: the right answers to each question; empty if it has none.
        no_answer: `(N,)`, for data with unanswerable questions: the score that a question has no
            answer, minus the score of its predicted answer.
        threshold: a question with a greater value of `no_answer` counts as answered by "".

    Returns:
        "exact" and "f1". With `no_answer` also "HasAns_..." and "NoAns_...", the same metrics over
        the questions with and without an answer, if there are any; "best_exact" and "best_f1", the
        metrics at their best thresholds; and these thresholds, "best_exact_thresh" and
        "best_f1_thresh".

    Raises:
        ValueError: the lengths of the arguments differ, or there are no questions.

    References: Rajpurkar et al. 2016, 2018 (SQuAD).
    """
    if not len(answers) == len(truths) > 0:
        raise ValueError(f"{len(answers)} answers to {len(truths)} questions")
    if no_answer is not None and np.shape(no_answer) != (len(answers),):
        raise ValueError(f"{np.shape(no_answer)} no-answer scores of {len(answers)} questions")
    # A right answer that has only punctuation and articles is ignored.
    right = [[words for words in map(_words, options) if words] for options in truths]
    answerable = np.array([bool(options) for options in right])  # (N,)
    pairs = [(_words(answer), o or [[]]) for answer, o in zip(answers, right, strict=True)]
    values = {
        "exact": np.array([float(words in options) for words, options in pairs]),
        "f1": np.array([max(_f1(words, one) for one in options) for words, options in pairs]),
    }  # (N,) each
    if no_answer is None:
        return {name: float(value.mean()) for name, value in values.items()}
    withheld = np.asarray(no_answer) > threshold
    given = {name: np.where(withheld, ~answerable, value) for name, value in values.items()}
    scores = {}
    parts = {"": np.ones(len(answers), bool), "HasAns_": answerable, "NoAns_": ~answerable}
    for prefix, among in parts.items():
        if among.any():
            scores |= {prefix + name: float(given[name][among].mean()) for name in given}
    # Raise the threshold step by step: one more question gets its answer, and gains the answer's
    # score or, if it is unanswerable, loses the point for "".
    order = np.argsort(no_answer, kind="stable")
    losses = np.array([-float(answer != "") for answer in answers])
    for name, value in values.items():
        gains = np.where(answerable, value, losses)[order]
        totals = np.cumsum([np.sum(~answerable), *gains])  # (N + 1,)
        best = int(totals.argmax())
        scores[f"best_{name}"] = float(totals[best] / len(answers))
        scores[f"best_{name}_thresh"] = float(no_answer[order[best - 1]]) if best else 0.0
    return scores


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(words: list[str], truth: list[str]) -> float:
    if not (words and truth):
        return float(words == truth)
    return overlap_f1((Counter(words) & Counter(truth)).total(), len(words), len(truth))


def score_words(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Computes "accuracy", the fraction of words whose tag is right; 0 without words."""
    pairs = zip(itertools.chain(*predictions), itertools.chain(*truths), strict=True)
    right = [found == true for found, true in pairs]
    return {"accuracy": float(np.mean(right)) if right else 0.0}


def score_tags(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]], scheme: str = "BI"
) -> dict[str, float]:
    """Computes precision, recall and F1 of entities; an entity's type and both ends must be right.

    Args:
        predictions, truths: the tags of each sentence.
        scheme: letters of the tags, "BI" for IOB2. The letters of BILOU, BMES and BMEWO are read as
            their equivalents in BIOES.

    Returns:
        "f1", "precision" and "recall" over all entities, and "TYPE_f1" and so on for each type that
        occurs, as fractions. These only count entities that follow the scheme strictly, for example
        begin with a B- tag. "conlleval_f1" is the F1 of CoNLL's own script, in which an I- tag that
        continues no entity begins one.

    Raises:
        ValueError: the numbers of sentences, or of words in a sentence, differ.
    """
    if [*map(len, predictions)] != [*map(len, truths)]:
        raise ValueError("predictions and truths have different numbers of sentences or words")
    found, true = _entities(predictions), _entities(truths)
    lenient = _rates({*found}, {*true})["f1"]
    ends = "BI" if scheme == "BI" else "ES"
    found, true = (
        {place for place, letters in side.items() if letters[0] in "BS" and letters[-1] in ends}
        for side in (found, true)
    )
    metrics = {**_rates(found, true), "conlleval_f1": lenient}
    for kind in sorted({place[0] for place in found | true}):
        of_kind = [{place for place in side if place[0] == kind} for side in (found, true)]
        metrics |= {f"{kind}_{name}": value for name, value in _rates(*of_kind).items()}
    return metrics


def _entities(sentences: Sequence[Sequence[str]]) -> dict[tuple[str, int, int, int], str]:
    """Finds sequences of tags of one type, divided before B and S and after E and S, as in CoNLL's
    script.

    Returns:
        The letters of the tags of each sequence in BIOES, by type, number of the sentence, start
        and end.
    """
    found = {}
    for number, tags in enumerate(sentences):
        start, letters, kind = 0, "", ""
        for place, tag in enumerate([*tags, "O"]):
            letter = tag[0].translate(_AS_BIOES)
            if not (letters[-1:] in ("B", "I") and letter in "IE" and tag[2:] == kind):
                if letters:
                    found[kind, number, start, place] = letters
                start, letters, kind = place, "", tag[2:]
            letters += letter if letter != "O" else ""
    return found


def _rates(found: set, true: set) -> dict[str, float]:
    right = len(found & true)
    return {
        "f1": overlap_f1(right, len(found), len(true)),
        "precision": right / len(found) if found else 0.0,
        "recall": right / len(true) if true else 0.0,
    }
