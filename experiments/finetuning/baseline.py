"""`finetune baseline`: what counting words achieves."""

import argparse
import json

import numpy as np

from experiments.finetuning.data import TRAIN, TaskData
from macaron_tf.data.storage import write_aside
from macaron_tf.data.task_data import Examples
from macaron_tf.data.tasks import Task, get_task
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import score


def run(options: argparse.Namespace) -> None:
    """Fits, scores and prints."""
    task = get_task(options.task)
    data = TaskData.read(task, options.source, options.data_dir, options.download)
    metrics = score_baseline(task, data.splits[TRAIN], data.validation)
    print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    if options.output:
        record = {"task": task.name, "source": options.source or task.source, **metrics}
        write_aside(options.output, (json.dumps(record, indent=1) + "\n").encode())


def score_baseline(task: Task, train: Examples, validation: dict[str, Examples]) -> dict:
    """Metrics of TF-IDF weights and a linear model, scikit-learn's settings as they come.

    Logistic regression, or ridge regression of scores. Words and pairs of them, sublinear counts.
    Two texts a and b give the columns a, b, |a - b|, a * b and their cosine: without the last three
    no linear model can tell whether they are alike.

    Args:
        task: the task.
        train: what is learnt from.
        validation: development sets; the first one's metrics have no prefix.

    Returns:
        As `experiments.finetuning.prediction.measure`.

    Raises:
        UserError: scikit-learn is not installed, or there is one class only.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError as error:
        raise UserError("the baseline needs a package: pip install scikit-learn") from error
    # One-letter words count: "a" and "I" are grammar, which CoLA asks about.
    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b"
    )
    try:
        words.fit([*train.first, *(train.second or ())])
    except ValueError as error:
        raise UserError(f"the training texts of {task.name!r} hold no words: give text") from error
    if task.regression:
        model = Ridge()
    elif len(np.unique(train.labels)) < 2:
        raise UserError(
            f"all training labels of {task.name!r} are {task.labels[train.labels[0]]!r}: "
            "give examples of two classes or more"
        )
    else:
        model = LogisticRegression(max_iter=1000)
    model.fit(_features(words, train), train.labels)
    measured = {}
    for place, (split, examples) in enumerate(validation.items()):
        predictions = model.predict(_features(words, examples))
        if task.score_range:
            predictions = np.clip(predictions, *task.score_range)
        prefix = f"{split}_" if place else ""
        metrics = score(task, predictions, examples.labels, examples.groups)
        measured.update((prefix + name, value) for name, value in metrics.items())
    return measured


def _features(words, examples: Examples):
    """A sparse matrix, a row an example."""
    from scipy import sparse

    first = words.transform(examples.first)  # (N, W)
    if examples.second is None:
        return first
    second = words.transform(examples.second)  # (N, W)
    both = first.multiply(second).tocsr()  # (N, W)
    # Rows have length 1: their product is the cosine.
    cosine = sparse.csr_matrix(both.sum(axis=1))  # (N, 1)
    return sparse.hstack([first, second, abs(first - second), both, cosine]).tocsr()
