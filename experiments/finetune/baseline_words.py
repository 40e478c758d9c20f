"""TF-IDF weights and a linear model: what counting words achieves on one text or two."""

from collections.abc import Callable

import numpy as np

from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.reading import Examples
from macaron_tf.errors import UserError


def bag_of_words(task: Task, train: Examples) -> Callable[[Examples], np.ndarray]:
    """Fits scikit-learn's TF-IDF weights and linear model, its settings as they come.

    Logistic regression, or ridge regression of scores. Words and pairs of them, sublinear counts.
    Two texts a and b give the columns a, b, |a - b|, a * b and their cosine: without the last three
    no linear model can tell whether they are alike.

    Args:
        task: a classification or regression task.
        train: what is learnt from.

    Returns:
        Examples to predictions, `(N,)` classes or scores.

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

    def predict(examples: Examples) -> np.ndarray:
        predictions = model.predict(_features(words, examples))
        return np.clip(predictions, *task.score_range) if task.score_range else predictions

    return predict


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
