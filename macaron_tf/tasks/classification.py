"""Classification and regression of one or two texts, and multiple choice."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from macaron_tf.data.tasks.encoding import (
    encode_choices,
    encode_examples,
    encode_pairs,
    has_text,
)
from macaron_tf.data.tasks.examples import Examples, read_examples
from macaron_tf.evaluation.glue import decide, f1, score
from macaron_tf.models import (
    CausalClassifier,
    CausalMultipleChoice,
    EncoderClassifier,
    EncoderMultipleChoice,
)
from macaron_tf.objectives import ClassificationObjective, MultiLabelObjective
from macaron_tf.tasks.base import require
from macaron_tf.tasks.labelled import LabelledTask, Limits


class Classification(LabelledTask):
    """Classification or regression of one or two texts, as in GLUE and SuperGLUE.

    The inputs of the signature `serving_default` are strings: `text (B,)`, or `first (B,)` and
    `second (B,)` for pairs of texts. A classifier of C classes has the outputs `label (B,)`
    strings, `probabilities (B, C)` float32 and `classes (B, C)` strings, where each row of
    `classes` has the names of all classes. A regression model has the output `score (B,)` float32,
    clipped to the task's range. Long texts are truncated as in training.

    The network computes logits `(N, C)` for N examples, or standardized scores `(N, 1)` for
    regression (see `Task.mean` and `Task.deviation`).
    """

    name = "classifier"
    pipeline = "text-classification"
    kind = "classification"
    takes: ClassVar[tuple[str, ...]] = ("language",)
    reader = staticmethod(read_examples)
    truncates = True

    @property
    def answer(self) -> str:
        low, high = self.task.score_range or (-math.inf, math.inf)
        return " ".join(self.task.labels) or f"a number from {low:g} to {high:g}"

    @property
    def inputs(self) -> dict[str, tf.DType]:
        return dict.fromkeys(("first", "second") if self.task.second else ("text",), tf.string)

    def changed(self, language: str) -> Self:
        """Returns a copy of the task for texts in `language`, a language code."""
        return super().changed(limits=dataclasses.replace(self.limits, language=language))

    def prepare(self, first: tf.Tensor, second: tf.Tensor | None = None) -> tuple[dict, None]:
        limits = self.limits
        layout = limits.max_length, limits.causal, limits.language, limits.special
        rows = encode_pairs(self.vocabulary, first, second, *layout)  # (B, L) each
        if limits.language_id:
            rows["language_ids"] = tf.ones_like(rows["token_ids"]) * limits.language_id
        return self.with_characters(rows), None

    def conclude(self, computed: tf.Tensor, extras: None) -> dict[str, tf.Tensor]:
        if self.task.regression:
            scores = computed[:, 0] * self.task.deviation + self.task.mean  # (B,)
            if self.task.score_range:
                scores = tf.clip_by_value(scores, *self.task.score_range)
            return {"score": scores}
        names = tf.constant(self.task.labels)  # (C,)
        return {
            "label": tf.gather(names, tf.argmax(computed, axis=1)),
            "probabilities": tf.nn.softmax(computed),
            "classes": tf.broadcast_to(names, tf.shape(computed)),
        }

    def encode(self, vocabulary, examples: Examples, limits: Limits):
        if self.task.regression and examples.labels is not None:
            scores = (examples.labels - self.task.mean) / self.task.deviation  # (N,)
            examples = dataclasses.replace(examples, labels=scores.astype(np.float32))
        layout = limits.causal, limits.language, limits.language_id, limits.special
        return encode_examples(vocabulary, examples, limits.max_length, *layout)

    def make_network(self, config, head_dropout, policy) -> EncoderClassifier | CausalClassifier:
        if config.causal:
            return CausalClassifier(
                config, self.task.num_classes, head_dropout, self.task.symmetric, dtype=policy
            )
        return EncoderClassifier(config, self.task.num_classes, head_dropout, dtype=policy)

    @property
    def objective(self) -> ClassificationObjective:
        return ClassificationObjective(self.task.num_classes)

    def outputs(self, logits, encoded, examples) -> np.ndarray:
        if not self.task.regression:
            return logits
        return logits.astype(float) * self.task.deviation + self.task.mean  # not clipped

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return decide(self.task, outputs)

    def score(self, predictions: np.ndarray, examples: Examples) -> dict[str, float]:
        return score(self.task, predictions, examples.labels, examples.groups)

    def answers(self, outputs: np.ndarray, examples: Examples) -> list:
        return self.decide(outputs).tolist()

    def line(self, answer: Any) -> str:
        """Formats an answer as its score, or as its label and the probability of each class."""
        if self.task.regression:
            return f"{answer:.6g}\n"
        pairs = zip(answer["classes"], answer["probabilities"], strict=True)
        shares = (f"{name} {share:.4f}" for name, share in pairs)
        return "\t".join([answer["label"], *shares]) + "\n"

    def constants(self, train: Examples, examples: Examples) -> Iterator[np.ndarray]:
        # The correlation with any constant is 0.
        labels = [0.0] if self.task.regression else np.unique(train.labels)
        return (np.full(len(examples), label) for label in labels)


class MultiLabel(Classification):
    """Classification of one or two texts to which any number of the classes apply.

    Outputs: `labels (B, C)` strings, the names of the classes whose probability is above one half,
    with "" in place of the others; `probabilities (B, C)` float32, each from 0 to 1, and `classes
    (B, C)` strings as of `Classification`. The network computes logits `(N, C)`.
    """

    name = "multi-label classifier"
    kind = "multilabel"

    @property
    def answer(self) -> str:
        return f"any of the classes {' '.join(self.task.labels)}"

    def conclude(self, computed: tf.Tensor, extras: None) -> dict[str, tf.Tensor]:
        names = tf.broadcast_to(tf.constant(self.task.labels), tf.shape(computed))  # (B, C)
        chosen = tf.where(computed > 0, names, "")
        return {"labels": chosen, "probabilities": tf.sigmoid(computed), "classes": names}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        return [{**row, "labels": [*filter(None, row["labels"])]} for row in super().rows(outputs)]

    @property
    def objective(self) -> MultiLabelObjective:
        return MultiLabelObjective()

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return outputs > 0  # (N, C)

    def score(self, predictions: np.ndarray, examples: Examples) -> dict[str, float]:
        pairs = zip(predictions.T, examples.labels.T, strict=True)  # (N,) each, for C classes
        return self.with_score(
            {
                "micro_f1": f1(predictions.ravel(), examples.labels.ravel()),
                "macro_f1": float(np.mean([f1(*pair) for pair in pairs])),
                "exact": float(np.mean((predictions == examples.labels).all(axis=1))),
            }
        )

    def answers(self, outputs: np.ndarray, examples: Examples) -> list[list[int]]:
        return [np.flatnonzero(row).tolist() for row in self.decide(outputs)]

    def line(self, answer: Any) -> str:
        """Formats an answer as its labels, separated by commas, and all probabilities."""
        return super().line({**answer, "label": ",".join(answer["labels"])})

    def constants(self, train: Examples, examples: Examples) -> Iterator[np.ndarray]:
        ranks = np.argsort(np.argsort(-train.labels.sum(axis=0)))  # the most frequent class is 0
        for count in range(len(ranks) + 1):
            yield np.tile(ranks < count, (len(examples), 1))


class MultipleChoice(Classification):
    """Multiple choice among R choices, as in RACE.

    The inputs of the signature `serving_default` are strings: `context (B,)`, `question (B,)` if
    the task has questions, and `choice1 (B,)` to `choiceR (B,)`. An empty string marks a missing
    choice. The outputs are the same as for `Classification`, with the names of the choices as
    classes. Long texts are truncated as in training. The graph raises InvalidArgumentError for an
    example with fewer than two choices that have text.

    The network computes logits `(N, R)` for N examples, with -1e9 for missing choices.
    """

    name = "chooser"
    pipeline = "multiple-choice"
    kind = "choice"
    takes = ()

    @property
    def answer(self) -> str:
        return f"one of the choices {' '.join(self.task.labels)}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (len(self.task.second),)

    @property
    def inputs(self) -> dict[str, tf.DType]:
        question = ["question"] if self.task.question else []
        choices = (f"choice{number}" for number in range(1, len(self.task.second) + 1))
        return dict.fromkeys(["context", *question, *choices], tf.string)

    def prepare(self, context: tf.Tensor, *texts: tf.Tensor) -> tuple[dict, None]:
        count = len(self.task.second)  # R
        questions = tf.repeat(texts[0], count) if self.task.question else None  # (B R,)
        choices = tf.stack(texts[-count:], axis=1)  # (B, R)
        has_choices = tf.math.count_nonzero(has_text(choices), axis=1) > 1
        message = "fewer than two choices: give two or more"
        choices = require(has_choices, message, tf.reshape(choices, [-1]))  # (B, R) -> (B R,)
        texts_of_rows = tf.repeat(context, count), questions, choices
        layout = self.limits.max_length, self.limits.causal
        rows = encode_choices(self.vocabulary, *texts_of_rows, *layout)
        shape = (tf.shape(context)[0], count, tf.shape(rows["token_ids"])[1])
        rows = {name: tf.reshape(ids, shape) for name, ids in rows.items()}  # (B, R, L)
        return self.with_characters(rows), None

    def make_network(
        self, config, head_dropout, policy
    ) -> EncoderMultipleChoice | CausalMultipleChoice:
        return (CausalMultipleChoice if config.causal else EncoderMultipleChoice)(
            config, head_dropout, dtype=policy
        )
