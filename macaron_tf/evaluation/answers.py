"""Metrics of question answering (SQuAD's) and of tagging (CoNLL's)."""

import itertools
from collections.abc import Sequence

import numpy as np

from macaron_tf.errors import needed

_AS_BIOES = str.maketrans("MLUW", "IESS")  # letters of BILOU, BMES and BMEWO
_ANSWER_METRICS = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")


def score_answers(
    answers: Sequence[str],
    truths: Sequence[Sequence[str]],
    no_answer: np.ndarray | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Scores answers by SQuAD's script of version 2.0, as fractions: 1 is perfect.

    Exact match and F1 of words compare lower-cased texts without punctuation and articles. Of
    several right answers the nearest counts. Version 1.1's script differs only where an answer or
    a truth is nothing but punctuation and articles.

    Args:
        answers: the best answer to each of N questions; "" for none.
        truths: the right answers to each; none where there is no answer.
        no_answer: (N,) by how much each question rather has no answer than that one, for a task of
            unanswerable questions.
        threshold: above it, "" is the answer.

    Returns:
        "exact" and "f1"; with `no_answer` also both of the questions with an answer, "HasAns_...",
        and without, "NoAns_..." (if there are such), and "best_exact" and "best_f1", the scores at
        the best thresholds, "best_exact_thresh" and "best_f1_thresh".

    Raises:
        UserError: tf-models-official, which has the script, is not installed.
        ValueError: the arguments are of unequal length, or empty.

    References: Rajpurkar et al. 2016, 2018 (SQuAD).
    """
    with needed("scoring answers"):
        from official.nlp.tools.squad_evaluate_v2_0 import _normalize_answer, evaluate
    if not len(answers) == len(truths) > 0:
        raise ValueError(f"{len(answers)} answers to {len(truths)} questions")
    if no_answer is not None and np.shape(no_answer) != (len(answers),):
        raise ValueError(f"{np.shape(no_answer)} no-answer scores of {len(answers)} questions")
    questions = [
        # A truth of punctuation and articles alone is none.
        {"id": number, "answers": [{"text": t} for t in options if _normalize_answer(t)]}
        for number, options in enumerate(truths)
    ]
    articles, said = [{"paragraphs": [{"qas": questions}]}], dict(enumerate(answers))
    probabilities = None
    if no_answer is not None:  # the script withholds an answer above 1
        probabilities = {i: 2.0 * (value > threshold) for i, value in enumerate(no_answer)}
    found = evaluate(articles, said, probabilities)
    names = ("exact", "f1") if no_answer is None else _ANSWER_METRICS
    scores = {name: found[name] / 100 for name in names if name in found}
    if no_answer is not None:
        found = evaluate(articles, said, dict(enumerate(map(float, no_answer))))
        for name in ("exact", "f1"):
            scores[f"best_{name}"] = found[f"final_{name}"] / 100
            scores[f"best_{name}_thresh"] = found[f"final_{name}_thresh"]
    return scores


def score_words(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]]
) -> dict[str, float]:
    """ "accuracy", the part of the words whose tag is right (0 of none), without entities."""
    pairs = zip(itertools.chain(*predictions), itertools.chain(*truths), strict=True)
    right = [found == true for found, true in pairs]
    return {"accuracy": float(np.mean(right)) if right else 0.0}


def score_tags(
    predictions: Sequence[Sequence[str]], truths: Sequence[Sequence[str]], scheme: str = "BI"
) -> dict[str, float]:
    """Precision, recall and F1 of entities, each of its type and with both its ends right.

    Args:
        predictions, truths: the tags of each sentence.
        scheme: letters of the tags, "BI" for IOB2; those of others stand for BIOES's.

    Returns:
        As fractions: "f1", "precision" and "recall" over all entities, and of each type that
        occurs "TYPE_f1" and so on, entities strictly by the scheme, such as each from its B- on;
        "conlleval_f1", the F1 of CoNLL's own script, which takes an I- that follows nothing for a
        beginning.

    Raises:
        UserError: seqeval is not installed.
        ValueError: the numbers of sentences, or of a sentence's words, differ.
    """
    with needed("scoring entities"):
        from seqeval.metrics import classification_report, f1_score
        from seqeval.scheme import IOB2, IOBES
    predictions, truths = (
        [[tag[0].translate(_AS_BIOES) + tag[1:] for tag in tags] for tags in side]
        for side in (predictions, truths)
    )
    if [*map(len, predictions)] != [*map(len, truths)]:
        raise ValueError("the predictions are not of the same sentences")
    metrics = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "conlleval_f1": 0.0}
    if all(tag == "O" for tags in (*predictions, *truths) for tag in tags):
        return metrics  # seqeval has no report on nothing
    report = classification_report(
        truths,
        predictions,
        output_dict=True,
        mode="strict",
        scheme=IOB2 if scheme == "BI" else IOBES,
        zero_division=0,
    )
    names = {"f1": "f1-score", "precision": "precision", "recall": "recall"}
    for kind, found in report.items():
        if kind == "micro avg" or not kind.endswith(" avg"):
            prefix = "" if kind == "micro avg" else f"{kind}_"
            metrics |= {prefix + name: float(found[theirs]) for name, theirs in names.items()}
    metrics["conlleval_f1"] = float(f1_score(truths, predictions, zero_division=0))
    return metrics
