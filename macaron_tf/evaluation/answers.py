"""Metrics for question answering (SQuAD) and tagging (CoNLL)."""

import itertools
import re
import string
from collections.abc import Sequence

import numpy as np

from macaron_tf.evaluation.language import overlap_f1, word_f1

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # only ASCII punctuation
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_AS_BIOES = str.maketrans("MLUW", "IESS")  # maps letters of BILOU, BMES and BMEWO to BIOES


def score_answers(
    answers: Sequence[str],
    truths: Sequence[Sequence[str]],
    no_answer: np.ndarray | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Computes exact match and word F1 as SQuAD 2.0's official script does, from 0 to 1.

    Both compare lower-cased texts without punctuation and articles, and count the right answer with
    the highest score. SQuAD 1.1's script differs only for answers of nothing but punctuation and
    articles.

    Args:
        answers: predicted answer to each of N questions. An empty string means no answer.
        truths: right answers to each question. An empty list means that the question is
            unanswerable.
        no_answer: `(N,)` no-answer score of each question, minus the score of its predicted answer.
            Only needed for data with unanswerable questions.
        threshold: value of `no_answer` above which the predicted answer is replaced by "".

    Returns:
        A dict of "exact" and "f1". With `no_answer`, also "HasAns_exact", "HasAns_f1",
            "NoAns_exact" and "NoAns_f1" over the answerable and the unanswerable questions, if
            there are any, and "best_exact" and "best_f1" at the best thresholds,
            "best_exact_thresh" and "best_f1_thresh".

    References: Rajpurkar et al. 2016, 2018 (SQuAD).
    """
    # Right answers that have only punctuation and articles are ignored.
    right = [[words for words in map(_words, truth) if words] for truth in truths]
    answerable = np.array([bool(truth) for truth in right])  # (N,)
    pairs = [(_words(answer), truth or [[]]) for answer, truth in zip(answers, right, strict=True)]
    values = {
        "exact": np.array([float(words in truth) for words, truth in pairs]),
        # Two empty answers are equal, although they have no word in common.
        "f1": np.array(
            [max(word_f1(words, one) or words == one for one in truth) for words, truth in pairs],
            float,
        ),
    }  # (N,) each
    if no_answer is None:
        return {name: float(value.mean()) for name, value in values.items()}
    is_withheld = np.asarray(no_answer) > threshold
    scores = {}
    subsets = {"": np.ones(len(answers), bool), "HasAns_": answerable, "NoAns_": ~answerable}
    for prefix, in_subset in subsets.items():
        if in_subset.any():
            for name, value in values.items():
                thresholded = np.where(is_withheld, ~answerable, value)[in_subset]
                scores[prefix + name] = float(thresholded.mean())
    # Raise the threshold step by step, so that each step adds one answer. The answer to an
    # answerable question adds its score. The answer to an unanswerable question costs one point.
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


def score_words(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns a dict of "accuracy", the fraction of words with the right tag (0 if none)."""
    pairs = zip(itertools.chain(*predictions), itertools.chain(*truths), strict=True)
    is_right = [predicted == true for predicted, true in pairs]
    return {"accuracy": float(np.mean(is_right)) if is_right else 0.0}


def score_tags(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]], scheme: str = "BI"
) -> dict[str, float]:
    """Computes precision, recall and F1 of entities, which count if type, start and end are right.

    `scheme` has the prefix letters of the tags, such as "BI" for IOB2. BILOU, BMES and BMEWO are
    converted to BIOES.

    Returns a dict of "f1", "precision" and "recall" over all entities, and the same with "TYPE_"
    for each type. These count only entities that follow the scheme strictly, for example with a B-
    tag at the start. "conlleval_f1" is the F1 of the original CoNLL script, in which an I- tag
    outside an entity also starts an entity.
    """
    if [*map(len, predictions)] != [*map(len, truths)]:
        raise ValueError("predictions and truths need one tag for each word of the same sentences")
    predicted, true = _entities(predictions), _entities(truths)
    lenient = _rates({*predicted}, {*true})["f1"]
    ends = "BI" if scheme == "BI" else "ES"

    def strict(side: dict[tuple, str]) -> set[tuple]:
        return {entity for entity, tags in side.items() if tags[0] in "BS" and tags[-1] in ends}

    predicted, true = strict(predicted), strict(true)
    metrics = {**_rates(predicted, true), "conlleval_f1": lenient}
    for kind in sorted({entity[0] for entity in predicted | true}):
        of_kind = ({entity for entity in side if entity[0] == kind} for side in (predicted, true))
        metrics |= {f"{kind}_{name}": value for name, value in _rates(*of_kind).items()}
    return metrics


def _entities(sentences: Sequence[Sequence[str]]) -> dict[tuple[str, int, int, int], str]:
    """Finds entities as spans of adjacent tags with one type, as in the CoNLL script.

    A span also ends before a tag B or S, and after a tag E or S. The result maps (type, sentence
    index, start, exclusive end) to the BIOES letters of the span.
    """
    entities = {}
    for sentence, tags in enumerate(sentences):
        start, letters, entity_type = 0, "", ""
        for position, tag in enumerate([*tags, "O"]):
            letter = tag[0].translate(_AS_BIOES)
            if not (letters[-1:] in ("B", "I") and letter in "IE" and tag[2:] == entity_type):
                if letters:
                    entities[entity_type, sentence, start, position] = letters
                start, letters, entity_type = position, "", tag[2:]
            letters += letter if letter != "O" else ""
    return entities


def _rates(predicted: set, true: set) -> dict[str, float]:
    right = len(predicted & true)
    f1 = overlap_f1(right, len(predicted), len(true))
    precision, recall = (right / max(len(side), 1) for side in (predicted, true))
    return {"f1": f1, "precision": precision, "recall": recall}
