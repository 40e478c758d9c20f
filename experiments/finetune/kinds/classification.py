"""Classes or scores of one text or two, and the choice of one of several endings."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from experiments.finetune.kinds.base import Limits, TaskKind
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import encode_examples
from macaron_tf.data.tasks.reading import Examples, read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.models import CausalChooser, CausalClassifier, EncoderChooser, EncoderClassifier
from macaron_tf.objectives import AuxiliaryLanguageObjective, ClassificationObjective


class Classification(TaskKind):
    """Tasks of GLUE and SuperGLUE. Outputs are logits `(N, C)`, or scores `(N, 1)`."""

    reader = staticmethod(read_examples)
    cuts = True

    @property
    def answer(self) -> str:
        low, high = self.task.score_range or (-math.inf, math.inf)
        return " ".join(self.task.labels) or f"a number from {low:g} to {high:g}"

    def of_texts(self, *columns: Sequence[str]) -> Examples:
        return Examples(tuple(map(list, columns)), None)

    def encode(self, vocabulary, examples: Examples, limits: Limits):
        if self.task.regression and examples.labels is not None:
            scores = (examples.labels - self.task.mean) / self.task.deviation  # (N,)
            examples = dataclasses.replace(examples, labels=scores.astype(np.float32))
        language = limits.language, limits.language_id
        return encode_examples(vocabulary, examples, limits.max_length, limits.causal, *language)

    def network(self, config, head_dropout, policy) -> EncoderClassifier | CausalClassifier:
        if config.causal:
            return CausalClassifier(
                config, self.task.num_classes, head_dropout, self.task.symmetric, dtype=policy
            )
        return EncoderClassifier(config, self.task.num_classes, head_dropout, dtype=policy)

    @property
    def objective(self) -> ClassificationObjective:
        return ClassificationObjective(self.task.num_classes)

    def learnt(self, config, language_weight) -> ClassificationObjective:
        if not config.causal:
            return self.objective
        return AuxiliaryLanguageObjective(self.task.num_classes, language_weight)

    def outputs(self, logits, encoded, examples, limits, tuned) -> np.ndarray:
        if not self.task.regression:
            return logits
        return logits.astype(float) * self.task.deviation + self.task.mean  # any range of scores

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return decide(self.task, outputs)

    def score(self, predictions: np.ndarray, examples: Examples) -> dict[str, float]:
        return score(self.task, predictions, examples.labels, examples.groups)

    def answers(self, outputs: np.ndarray, examples: Examples) -> list:
        return self.decide(outputs).tolist()

    def lines(self, outputs: np.ndarray, examples: Examples) -> str:
        """A line an example: the label and each class's probability, or the score."""
        decided = self.decide(outputs)
        if self.task.regression:
            return "".join(f"{score:.6g}\n" for score in decided)
        return "".join(
            "\t".join([self.task.labels[label], *(f"{part:.4f}" for part in row)]) + "\n"
            for label, row in zip(decided, probabilities(outputs), strict=True)
        )

    def baseline(self, train: Examples) -> Callable[[Examples], np.ndarray]:
        return bag_of_words(self.task, train)


class Choice(Classification):
    """Tasks of RACE's kind. Outputs are logits `(N, R)`, one of each choice, -1e9 where none is."""

    @property
    def answer(self) -> str:
        return f"one of the choices {' '.join(self.task.labels)}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.task.second),)

    @property
    def columns(self) -> int:
        return 1 + bool(self.task.question) + len(self.task.second)

    def of_texts(self, *columns: Sequence[str]) -> Examples:
        first, *others = map(list, columns)
        asked = others.pop(0) if self.task.question else None
        return Examples((first, *others), None, questions=asked)

    def parse(self, lines: list[str], first: int) -> Examples:
        examples = super().parse(lines, first)
        for number, choices in enumerate(zip(*examples.texts[1:], strict=True), first):
            if sum(bool(choice.strip()) for choice in choices) < 2:
                raise UserError(f"line {number}: fewer than two choices: give two or more")
        return examples

    def network(self, config, head_dropout, policy) -> EncoderChooser | CausalChooser:
        return (CausalChooser if config.causal else EncoderChooser)(
            config, head_dropout, dtype=policy
        )

    def baseline(self, train: Examples) -> None:
        return None


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax over classes: `(N, C)` to `(N, C)`."""
    return tf.nn.softmax(logits).numpy()


def bag_of_words(task: Task, train: Examples) -> Callable[[Examples], np.ndarray]:
    """Fits scikit-learn's TF-IDF weights and linear model, its settings as they come.

    Logistic regression, or ridge regression of scores. Words and pairs of them, sublinear counts.
    Two texts a and b give the columns a, b, |a - b|, a * b and their cosine: without the last three
    no linear model can tell whether they are alike.
    """
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
    first = words.transform(examples.first)  # (N, W)
    if examples.second is None:
        return first
    second = words.transform(examples.second)  # (N, W)
    both = first.multiply(second).tocsr()  # (N, W)
    # Rows have length 1: their product is the cosine.
    cosine = sparse.csr_matrix(both.sum(axis=1))  # (N, 1)
    return sparse.hstack([first, second, abs(first - second), both, cosine]).tocsr()
