"""The interface of a kind of task."""

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from macaron_tf.data.batches import EncodedExamples, Progress
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig
from macaron_tf.settings import Count, Settings
from macaron_tf.text.base import PieceVocabulary


@dataclasses.dataclass(frozen=True)
class SpanLimits(Settings):
    """Limits of questions and contexts; BERT's released code's numbers.

    Attributes:
        doc_stride: tokens of a context between the beginnings of two windows on it.
        max_question: tokens of a question; the others are cut off.
        max_answer: longest answer, in tokens.
    """

    section: ClassVar[str] = "spans"

    doc_stride: Count = 128
    max_question: Count = 64
    max_answer: Count = 30


@dataclasses.dataclass(frozen=True)
class Limits(Settings):
    """Limits of the rows that a model reads.

    Attributes:
        max_length: greatest length of a row, special ids included.
        spans: of questions.
        causal: whether the model is causal, whose rows are made otherwise, see `encode_pairs`.
    """

    max_length: Count
    spans: SpanLimits = SpanLimits()
    causal: bool = False


def refuse_last(task: Task, config: EncoderConfig) -> None:
    """Refuses a model whose rows end with [CLS], for a kind whose rows begin with it."""
    if config.summary == "last":
        raise UserError(
            f"{task.name} is read in rows that begin with [CLS], which those of this XLNet end "
            "with: fine-tune it on a classification, or give --init another encoder"
        )


class TaskKind(abc.ABC):
    """A kind of task, of one task.

    A kind has types of its own for "examples", which have a length and `labels` (None where they
    are secret), for "outputs", made from a network's logits, and for "predictions", decided from
    outputs.
    """

    def __init__(self, task: Task):
        self.task = task

    @property
    @abc.abstractmethod
    def answer(self) -> str:
        """The answer to be predicted, in a few words."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(R,) where an example has R rows at once; () where it has one."""
        return ()

    @abc.abstractmethod
    def read(
        self, split: str, data_dir: str | os.PathLike | None, download: bool, source: str | None
    ) -> Any:
        """The examples of a split, as `read_examples` for a classification task."""

    @abc.abstractmethod
    def of_texts(self, *columns: Sequence[str]) -> Any:
        """Examples without labels.

        Args:
            columns: N texts, or N first and N second ones.
        """

    @abc.abstractmethod
    def parse(self, lines: list[str], first: int) -> Any:
        """Examples from the lines of a file.

        Args:
            lines: one an example.
            first: the number of the first one, for errors.

        Raises:
            UserError: a line is not of the task's form; says which.
        """

    @abc.abstractmethod
    def least_length(self, spans: SpanLimits) -> int:
        """The shortest `max_length` that a row fits into."""

    @abc.abstractmethod
    def encode(
        self,
        vocabulary: PieceVocabulary,
        examples: Any,
        limits: Limits,
        progress: Progress | None = None,
    ) -> EncodedExamples:
        """Tokenizes examples: rows, of which an example may have several."""

    @abc.abstractmethod
    def network(self, config: EncoderConfig, head_dropout: float, policy) -> keras.Model:
        """The encoder with the kind's head, not built."""

    @property
    @abc.abstractmethod
    def objective(self) -> Callable:
        """The loss of a development set: of the answers."""

    def learnt(self, config: EncoderConfig, language_weight: float) -> Callable:
        """The training objective.

        Args:
            config: the network's.
            language_weight: see `FinetuningRecipe`.
        """
        return self.objective

    @abc.abstractmethod
    def outputs(
        self,
        logits: np.ndarray,
        encoded: EncodedExamples,
        examples: Any,
        limits: Limits,
        tuned: Mapping[str, float],
    ) -> Any:
        """The network's outputs for each example.

        Args:
            logits: of each row; where its output is shorter than the longest, -1e9 fills it up.
            encoded: the rows.
            examples: their examples.
            limits: they were encoded with.
            tuned: metrics of the validation of the network's weights, if there was one.
        """

    @abc.abstractmethod
    def finite(self, outputs: Any) -> bool:
        """Whether no output is NaN or infinite."""

    @abc.abstractmethod
    def decide(self, outputs: Any) -> Any:
        """Outputs to predictions."""

    @abc.abstractmethod
    def score(self, predictions: Any, examples: Any) -> dict[str, float]:
        """The task's metrics by name, and "score", the mean of its main ones.

        Raises:
            UserError: the examples have no labels.
        """

    @abc.abstractmethod
    def answers(self, outputs: Any, examples: Any) -> Any:
        """Predictions as JSON has them."""

    @abc.abstractmethod
    def lines(self, outputs: Any, examples: Any) -> str:
        """Predictions as lines for a person."""

    def baseline(self, train: Any) -> Callable[[Any], Any] | None:
        """A predictor without a network, fitted to the training set; None where there is none."""
        return None

    def measure(self, outputs: Any, examples: Any) -> dict[str, float]:
        """`score` of outputs; all NaN where one is not finite."""
        metrics = self.score(self.decide(outputs), examples)
        # The argmax of a diverged model would score like the first class.
        finite = self.finite(outputs)
        return {name: value if finite else float("nan") for name, value in metrics.items()}

    def with_score(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics, and "score"."""
        return {**metrics, "score": float(np.mean([metrics[name] for name in self.task.metrics]))}
