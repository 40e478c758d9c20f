"""The metrics of GLUE and SuperGLUE (Wang et al. 2018, 2019), and the files of their servers.

scikit-learn and SciPy, of the extra `evaluate`, compute them. A correlation that is undefined is 0
here, not NaN.
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
    """A model's outputs to predictions.

    Args:
        outputs: (N, C) logits or probabilities; (N, 1) scores of a regression task.

    Returns:
        (N,) int64 classes, or float64 scores, held within the task's range.
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
    """Scores predictions by a task's metrics, as fractions: 1 is perfect.

    A metric that its formula leaves undefined counts as 0, as guessing does: Matthews' correlation
    where only one class is predicted (or true), Pearson's and Spearman's where all predictions are
    equal or one is not finite, F1 without a positive. Papers print them times 100.

    Args:
        predictions: (N,) classes or scores, such as `decide` makes.
        labels: (N,) the true ones.
        groups: (N, 2) paragraph and question of each example, for a grouped task.

    Returns:
        Each metric of the task by its name, and "score": the mean of its main ones.

    Raises:
        UserError: no labels, no example, or a metric that does not exist.
        ValueError: arrays of unequal length; no groups for a grouped task.
    """
    if labels is None:
        raise UserError(
            f"these examples of {task.name!r} have no labels to score against: take a "
            f"validation split ({', '.join(task.validation_splits)})"
        )
    names = (*task.metrics, *task.more_metrics)
    unknown = [name for name in names if name not in METRICS and name != "em"]
    if unknown or not task.metrics:
        raise UserError(
            f"task {task.name!r}: no metric {(unknown or [''])[0]!r}; "
            f"there are {', '.join([*METRICS, 'em'])}"
        )
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {labels.shape} labels")
    if not len(labels):
        raise UserError(f"no example of {task.name!r} to score: take a larger split")
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
    """Part of the examples whose class is right."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1, 0 without a positive; of MultiRC's answers, all together, the paper's F1a."""
    return float(_scikit_learn().f1_score(labels == 1, predictions == 1, zero_division=0.0))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean of F1 over the classes that are predicted or true."""
    return float(_scikit_learn().f1_score(labels, predictions, average="macro", zero_division=0.0))


def _or_zero(correlation: Metric) -> Metric:
    """A correlation that is 0 where an array is not finite, empty, or all equal."""

    @functools.wraps(correlation)
    def defined(predictions: np.ndarray, labels: np.ndarray) -> float:
        arrays = (predictions, labels)
        if not all(np.isfinite(v).all() and len(v) and np.ptp(v) > 0 for v in arrays):
            return 0.0
        return float(correlation(predictions, labels))

    return defined


@_or_zero
def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation of two classes or more (Gorodkin 2004), from -1 to 1."""
    return _scikit_learn().matthews_corrcoef(labels, predictions)


@_or_zero
def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation, from -1 to 1."""
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    return _scipy().pearsonr(x, y).statistic


@_or_zero
def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal scores sharing their mean rank."""
    return pearson(_scipy().rankdata(predictions), _scipy().rankdata(labels))


def exact_match(predictions: np.ndarray, labels: np.ndarray, groups: np.ndarray | None) -> float:
    """Part of the questions all of whose answers are judged right (Khashabi et al. 2018).

    Args:
        predictions, labels: (N,) classes.
        groups: (N, 2) paragraph and question of each.

    Raises:
        ValueError: no groups, or not one for each example.
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
    """Writes the predictions of a test set in its server's format.

    GLUE: two tab-separated columns under `index` and `prediction`; SuperGLUE: a JSON object a line,
    of an example for BoolQ, of a paragraph with its questions and answers for MultiRC. All in
    ascending order of the benchmark's numbers.

    Args:
        file: one of the task's `submissions`.
        predictions: (N,) classes or scores, such as `decide` makes.
        indices: (N,) the benchmark's number of each example (`Examples.indices`).
        groups: (N, 2) paragraph and question of each, for a grouped task (`Examples.groups`).

    Returns:
        The file's path.

    Raises:
        UserError: a prediction is not finite; the folder cannot be written.
        ValueError: arrays of unequal length, an index twice, no groups for a grouped task.
    """
    predictions, indices = np.asarray(predictions), np.asarray(indices)
    if predictions.shape != indices.shape or indices.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {indices.shape} indices")
    if len(np.unique(indices)) != len(indices):
        raise ValueError(f"{file.name}: an index occurs twice")
    if not np.isfinite(predictions).all():
        raise UserError(
            f"{file.name} cannot be written: a prediction is not a finite number; "
            "use a model whose training did not diverge"
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
    """MultiRC's nesting; the numbers of questions and answers run through the whole set."""
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
