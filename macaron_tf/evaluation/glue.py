"""Metrics of GLUE and SuperGLUE (Wang et al. 2018, 2019), and files for the GLUE server.

scikit-learn and SciPy compute the correlations. The extra `evaluate` installs both packages. An
undefined correlation is 0 instead of NaN.
"""

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from macaron_tf.data.tasks.definitions import SubmissionFile, Task
from macaron_tf.errors import UserError, needed
from macaron_tf.evaluation.language import Metric, overlap_f1
from macaron_tf.io import paths as storage


def decide(task: Task, outputs: np.ndarray) -> np.ndarray:
    """Converts `(N, C)` logits or probabilities to classes `(N,)` int64.

    In regression, `(N, 1)` scores become `(N,)` float64, clipped to the task's range.
    """
    outputs = np.asarray(outputs)
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
    """Computes the task's metrics, where 1 is the best value. Papers print the metrics times 100.

    An undefined metric is 0: Matthews' correlation if all predictions or all labels are one class,
    Pearson's and Spearman's if all predictions or all labels are equal or a value is not finite,
    and F1 if no prediction and no label is positive. "score" is the mean of the main metrics.

    Args:
        predictions, labels: `(N,)` classes or scores, such as the result of `decide`, and the true
            ones.
        groups: `(N, 2)` paragraph index and question index of each example, for a grouped task
            (`Task.grouped`).
    """
    if labels is None:
        raise UserError(f"these examples of {task.name!r} have no labels: give a validation split")
    names = (*task.metrics, *task.more_metrics)
    if not task.metrics:
        raise UserError(f"the task {task.name!r} names none of {', '.join([*METRICS, 'em'])}")
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if not len(labels):
        raise UserError(f"there are no examples of the task {task.name!r} to score")
    metrics = {**METRICS, "em": functools.partial(exact_match, groups=groups)}
    values = {name: metrics[name](predictions, labels) for name in names}
    values["score"] = float(np.mean([values[name] for name in task.metrics]))
    return values


def _package(name: str) -> Any:
    """Imports scikit-learn or SciPy, which takes time and which few commands use."""
    with needed("this metric"):
        return importlib.import_module(name)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the fraction of examples whose predicted class is right."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """Computes the F1 of the class `positive`, or 0 if no prediction and no label is that class.

    On MultiRC, the result is the paper's F1a, because each example is a single answer.
    """
    is_predicted, is_true = predictions == positive, labels == positive
    counts = map(np.sum, (is_predicted & is_true, is_predicted, is_true))
    return float(overlap_f1(*counts))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean F1 over all classes that occur in `predictions` or `labels`."""
    return float(np.mean([f1(predictions, labels, c) for c in np.union1d(predictions, labels)]))


def _vary(*arrays: np.ndarray) -> bool:
    """Returns whether arrays have a correlation: not if empty, constant or with infinite values."""
    return all(np.isfinite(v).all() and len(v) and np.ptp(v) > 0 for v in arrays)


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Matthews' correlation (Gorodkin 2004), from -1 to 1, or 0 if it is undefined."""
    if not _vary(predictions, labels):
        return 0.0
    return float(_package("sklearn.metrics").matthews_corrcoef(labels, predictions))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Pearson's correlation, from -1 to 1, or 0 if it is undefined."""
    if not _vary(predictions, labels):
        return 0.0
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    return float(_package("scipy.stats").pearsonr(x, y).statistic)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Spearman's rank correlation, or 0 if it is undefined. Ties get mean ranks."""
    if not _vary(predictions, labels):
        return 0.0
    return pearson(*map(_package("scipy.stats").rankdata, (predictions, labels)))


def exact_match(predictions: np.ndarray, labels: np.ndarray, groups: np.ndarray | None) -> float:
    """Computes the share of questions with all answers right (MultiRC; Khashabi et al. 2018)."""
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
) -> epath.Path:
    """Writes test set predictions in the file format of the GLUE server.

    The file has two tab-separated columns, `index` and `prediction`, sorted by the benchmark's
    index of the example.

    Args:
        predictions, indices: `(N,)` classes or scores, such as the result of `decide`, and the
            indices of `Examples`.
    """
    predictions = np.asarray(predictions)
    if not np.isfinite(predictions).all():
        raise UserError(f"{file.name} cannot be written, because a prediction is not finite")
    lines = [f"{indices[i]}\t{_prediction_text(task, predictions[i])}" for i in np.argsort(indices)]
    path = storage.as_path(folder) / file.name
    storage.write_atomic(path, "\n".join(["index\tprediction", *lines, ""]).encode())
    return path


def _prediction_text(task: Task, prediction: float) -> str:
    if task.regression:
        return f"{prediction:.3f}"
    return task.server_labels[int(prediction)] if task.server_labels else str(int(prediction))
