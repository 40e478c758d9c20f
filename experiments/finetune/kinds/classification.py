"""Classes, or scores, of one text or two."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from experiments.finetune.baseline_words import bag_of_words
from experiments.finetune.kinds.base import Limits, SpanLimits, TaskKind
from macaron_tf.data.tasks.encoding import encode_examples
from macaron_tf.data.tasks.reading import Examples, read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.models import CausalClassifier, EncoderClassifier
from macaron_tf.objectives import AuxiliaryLanguageObjective, ClassificationObjective


class Classification(TaskKind):
    """Tasks of GLUE and SuperGLUE. Outputs are logits `(N, C)`, or scores `(N, 1)`."""

    @property
    def answer(self) -> str:
        low, high = self.task.score_range or (-math.inf, math.inf)
        return " ".join(self.task.labels) or f"a number from {low:g} to {high:g}"

    def read(self, split, data_dir, download, source) -> Examples:
        return read_examples(self.task, split, data_dir, download, source)

    def of_texts(self, *columns: Sequence[str]) -> Examples:
        first, second = [*map(list, columns), None][:2]
        return Examples(first, second, None, np.arange(len(first)), None)

    def parse(self, lines: list[str], first: int) -> Examples:
        if not self.task.second:
            return self.of_texts(lines)
        return self.of_texts(*two_columns(lines, first, f"{self.task.name} is about two texts"))

    def least_length(self, spans: SpanLimits) -> int:
        return 5 if self.task.second else 3

    def encode(self, vocabulary, examples: Examples, limits: Limits, progress=None):
        return encode_examples(vocabulary, examples, limits.max_length, progress, limits.causal)

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
        return logits

    def finite(self, outputs: np.ndarray) -> bool:
        return bool(np.isfinite(outputs).all())

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
            return "".join(f"{score:.4f}\n" for score in decided)
        return "".join(
            "\t".join([self.task.labels[label], *(f"{part:.4f}" for part in row)]) + "\n"
            for label, row in zip(decided, probabilities(outputs), strict=True)
        )

    def baseline(self, train: Examples) -> Callable[[Examples], np.ndarray]:
        return bag_of_words(self.task, train)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The softmax over classes: `(N, C)` to `(N, C)`."""
    return tf.nn.softmax(logits).numpy()


def two_columns(lines: list[str], first: int, why: str) -> tuple[list[str], list[str]]:
    """Both columns of lines with a tab in each.

    Args:
        lines: the lines.
        first: number of the first one.
        why: why there are to be two.

    Raises:
        UserError: a line has another number of columns.
    """
    pairs = [line.split("\t") for line in lines]
    for number, pair in enumerate(pairs, first):
        if len(pair) != 2:
            raise UserError(
                f"line {number}: {len(pair)} columns, not 2: {why}, separate them by one tab"
            )
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
