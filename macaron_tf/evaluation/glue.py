"""Metrics of GLUE and SuperGLUE (Wang et al. 2018, 2019), and files to submit to their servers.

scikit-learn and SciPy compute the metrics; the extra `evaluate` installs both. An undefined
correlation is 0 here, not NaN.
"""

import functools
import json
import os
from collections.abc import Sequence

import numpy as np
from etils import epath

from macaron_tf.data.tasks.definitions import SubmissionFile, Task
from macaron_tf.errors import UserError, needed
from macaron_tf.evaluation.language import Metric
from macaron_tf.io import paths as storage


def decide(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Converts a model's outputs to predictions.

    Args:
        task: the task.
        outputs: `(N, C)` logits or probabilities; `(N, 1)` scores of a regression task.

    Returns:
        `(N,)` int64 classes, or float64 scores, clipped to the task's range.
    """
    outputs = np.asarray(outputs)
    if outputs.ndim != 2 or outputs.shape[1] != task.num_classes:
        raise ValueError(f"outputs are {outputs.shape}, not (N, {task.num_classes})")
    if not task.regression:
        return outputs.argmax(axis=1)
    scores = outputs[:, 0].astype(np.float64)  # (N,)
    return scores if task.score_range is None else np.clip(scores, *task.score_range)


def score(
    task: Task,
    predictions: Sequence[float] | np.ndarray,
    labels: Sequence[float] | np.ndarray | None,
    groups: np.ndarray | None = None,
) -> dict[str, float]:
    """Scores predictions by a task's metrics, as fractions; papers print them times 100.

    An undefined metric is 0, the score of guessing: Matthews' correlation if only one class is
    predicted (or true), Pearson's and Spearman's if all predictions are equal or one is not finite,
    and F1 without a positive.

    Args:
        task: the task.
        predictions: `(N,)` classes or scores, such as `decide` makes.
        labels: `(N,)` true classes or scores, or None if the data has none.
        groups: `(N, 2)` numbers of the paragraph and the question of each example, for a grouped
            task.

    Returns:
        Each metric of the task by its name, and "score", the mean of its main metrics.

    Raises:
        UserError: there are no labels or examples, or a metric does not exist.
        ValueError: the arrays' lengths differ, or a grouped task has no groups.
    """
    if labels is None:
        raise UserError(
            f"these examples of {task.name!r} have no labels, so they cannot be scored: give a "
            f"validation split ({', '.join(task.validation_splits)})"
        )
    names = (*task.metrics, *task.more_metrics)
    unknown = [name for name in names if name not in METRICS and name != "em"]
    if unknown or not task.metrics:
        raise UserError(
            f"task {task.name!r}: there is no metric {(unknown or [''])[0]!r}; give one of "
            f"{', '.join([*METRICS, 'em'])}"
        )
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {labels.shape} labels")
    if not len(labels):
        raise UserError(f"there is no example of {task.name!r} to score: give a larger split")
    found = {
        name: exact_match(predictions, labels, groups)
        if name == "em"
        else METRICS[name](predictions, labels)
        for name in names
    }
    found["score"] = float(np.mean([found[name] for name in task.metrics]))
    return found


def _scikit_learn():
    with needed("this metric"):
        from sklearn import metrics
    return metrics


def _scipy():
    with needed("this metric"):
        from scipy import stats
    return stats


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Fraction of the examples whose class is right."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1; 0 without a positive. For MultiRC, over all answers, it is the paper's F1a."""
    return float(_scikit_learn().f1_score(labels == 1, predictions == 1, zero_division=0.0))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the F1 of each class that is predicted or true."""
    return float(_scikit_learn().f1_score(labels, predictions, average="macro", zero_division=0.0))


def _or_zero(correlation: Metric) -> Metric:
    """Wraps a correlation so that it is 0 if an array is empty, constant, or not finite."""

    @functools.wraps(correlation)
    def defined(predictions: np.ndarray, labels: np.ndarray) -> float:
        arrays = (predictions, labels)
        if not all(np.isfinite(v).all() and len(v) and np.ptp(v) > 0 for v in arrays):
            return 0.0
        return float(correlation(predictions, labels))

    return defined


@_or_zero
def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation for two or more classes (Gorodkin 2004), from -1 to 1."""
    return _scikit_learn().matthews_corrcoef(labels, predictions)


@_or_zero
def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation, from -1 to 1."""
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    return _scipy().pearsonr(x, y).statistic


@_or_zero
def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's correlation, from -1 to 1: Pearson's correlation of ranks, with mean ranks for
    ties."""
    return pearson(_scipy().rankdata(predictions), _scipy().rankdata(labels))


def exact_match(predictions: np.ndarray, labels: np.ndarray, groups: np.ndarray | None) -> float:
    """Fraction of the questions for which all answers are classified correctly (Khashabi et al.
    2018).

    Args:
        predictions, labels: `(N,)` classes of answers.
        groups: `(N, 2)` numbers of the paragraph and the question of each answer.

    Raises:
        ValueError: there are no examples, or not one group for each.
    """
    if groups is None or len(groups) != len(labels) or not len(labels):
        raise ValueError("exact match needs examples, and the group of each")
    _, question = np.unique(groups, axis=0, return_inverse=True)
    wrong = np.bincount(question.reshape(-1), weights=predictions != labels)  # (questions,)
    return float(np.mean(wrong == 0))


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1a": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def write_submission(
    task: Task,
    file: SubmissionFile,
    folder: str | os.PathLike,
    predictions: Sequence[float] | np.ndarray,
    indices: np.ndarray,
    groups: np.ndarray | None = None,
) -> epath.Path:
    """Writes predictions for a test set in the format of the benchmark's server.

    A file for GLUE has two tab-separated columns, `index` and `prediction`. A file for SuperGLUE
    has a JSON object in each line: an example or, for MultiRC, a paragraph with its questions and
    answers. Lines are in ascending order of the benchmark's numbers.

    Args:
        task: the task.
        file: one of the task's `submissions`.
        folder: the folder to write into.
        predictions: `(N,)` classes or scores, such as `decide` makes.
        indices: `(N,)` the benchmark's number of each example (`Examples.indices`).
        groups: `(N, 2)` numbers of the paragraph and the question of each example, for a grouped
            task (`Examples.groups`).

    Returns:
        The file's path.

    Raises:
        UserError: a prediction is not finite, or the folder cannot be written.
        ValueError: the arrays' lengths differ, an index occurs twice, or a grouped task has no
            groups.
    """
    predictions, indices = np.asarray(predictions), np.asarray(indices)
    if predictions.shape != indices.shape or indices.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {indices.shape} indices")
    if len(np.unique(indices)) != len(indices):
        raise ValueError(f"{file.name}: an index occurs twice")
    if not np.isfinite(predictions).all():
        raise UserError(
            f"{file.name} cannot be written: a prediction is NaN or infinite; give a model whose "
            "training did not diverge"
        )
    if task.grouped:
        if groups is None or len(groups) != len(indices):
            raise ValueError(f"{file.name} needs the group of each example")
        lines = _paragraphs(predictions, indices, groups)
    else:
        order = np.argsort(indices)
        answers = [(int(indices[i]), _spelled(task, predictions[i])) for i in order]
        if file.name.endswith(".jsonl"):
            lines = [json.dumps({"idx": index, "label": answer}) for index, answer in answers]
        else:
            lines = ["index\tprediction"] + [f"{index}\t{answer}" for index, answer in answers]
    path = storage.as_path(folder) / file.name
    storage.write_aside(path, "".join(f"{line}\n" for line in lines).encode())
    return path


def _spelled(task: Task, prediction: float) -> str:
    if not task.regression:
        return task.server_labels[int(prediction)] if task.server_labels else str(int(prediction))
    if task.score_range is not None:
        prediction = np.clip(prediction, *task.score_range)
    return f"{prediction:.3f}"


def _paragraphs(predictions, indices, groups) -> list[str]:
    """Makes MultiRC's lines: answers in questions in paragraphs, with the benchmark's numbers."""
    paragraphs: dict[int, dict[int, list[dict]]] = {}
    for i in np.lexsort((indices, groups[:, 1], groups[:, 0])):
        paragraph, question = (int(number) for number in groups[i])
        answer = {"idx": int(indices[i]), "label": int(predictions[i])}
        paragraphs.setdefault(paragraph, {}).setdefault(question, []).append(answer)
    lines = []
    for paragraph, questions in paragraphs.items():
        nested = [{"idx": question, "answers": answers} for question, answers in questions.items()]
        lines.append(json.dumps({"idx": paragraph, "passage": {"questions": nested}}))
    return lines
