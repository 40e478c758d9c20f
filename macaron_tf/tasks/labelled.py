"""Base of the kinds of tasks with labelled data: reading, tokenizing, objective and score."""

import abc
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.records import saved_splits
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig
from macaron_tf.settings import Count, Settings
from macaron_tf.tasks.base import OnePass
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.words import CharacterWords

_MAX_LENGTH = 128  # row length of a classifier whose training length is unknown


@dataclasses.dataclass(frozen=True)
class SpanLimits(Settings):
    """Limits of questions and contexts; the defaults are those of BERT's released code.

    Attributes:
        doc_stride: tokens from the start of one window on a context to the start of the next.
        max_question: most tokens of a question; the rest is cut off.
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
        max_length: greatest length of a row, with special ids.
        spans: limits of questions and contexts.
        causal: whether the model is causal; causal rows have another layout, see `encode_pairs`.
        language: language of the texts of a classification; None: the model's first language.
        languages: the model's languages, in the order of its embeddings.
        embeds_languages: whether the model has language embeddings.
        special: whether rows have special ids, see `encode_pairs`.
    """

    max_length: Count
    spans: SpanLimits = SpanLimits()
    causal: bool = False
    language: str | None = None
    languages: tuple[str, ...] = ()
    embeds_languages: bool = False
    special: bool = True

    def check(self) -> None:
        if self.language and self.language not in self.languages:
            known = f"one of {', '.join(self.languages)}" if self.languages else "none is named"
            raise UserError(
                f"language={self.language!r} is none of the model's: {known}; start from an XLM "
                "that has read it"
            )

    @property
    def language_id(self) -> int:
        """Row of `language` in the model's language embeddings; 0 if it has none."""
        embedded = self.language and self.embeds_languages
        return self.languages.index(self.language) if embedded else 0


class LabelledTask(OnePass):
    """Base of the kinds of tasks that are trained on labelled examples of a data set or table.

    Each kind has its own types of "examples", "outputs" and "predictions". Examples have a length
    and `labels`, which are None if they are secret. Outputs are computed from the network's logits,
    and predictions are decided from outputs.

    Args:
        task: columns, classes and metrics of the data set.
        limits: limits of the rows that the network reads; None without a network.
        network: see `TaskKind`.
        vocabulary: see `TaskKind`.
        tuned: metrics of the validation of the network's weights, {} without one. `Spans` reads its
            threshold from them.

    Attributes:
        kind: see `Task`.
        reader: function of task, split, tfds and source that reads examples, see `read_examples`.
        row_shape: (R,) if an example has R rows at once, () if it has one.
        cuts: whether texts that are too long are cut; other kinds split them into windows.
        answer: what is predicted, in a few words.
    """

    kind: ClassVar[str]
    reader: ClassVar[Callable]
    row_shape: tuple[int, ...] = ()
    cuts: ClassVar[bool] = False
    answer: str

    def __init__(
        self,
        task: Task,
        limits: Limits | None = None,
        network: keras.Model | None = None,
        vocabulary: PieceVocabulary | CharacterWords | None = None,
        tuned: Mapping[str, float] = types.MappingProxyType({}),
    ):
        super().__init__(network, vocabulary)
        self.task, self.limits, self.tuned = task, limits, tuned

    def description(self) -> dict[str, Any]:
        """Returns task and limits as model.json stores them; `task_of` reads them."""
        return {"task": dataclasses.asdict(self.task), "limits": dataclasses.asdict(self.limits)}

    def facts(self) -> dict[str, Any]:
        labels, longest = list(self.task.labels), self.limits.max_length
        return {"task": self.task.name, "labels": labels, "max_length": longest}

    def read(
        self, split: str, tfds: Tfds | None, source: str | None, language: str | None = None
    ) -> Any:
        """Reads the labelled examples of a split; arguments as for `read_examples`.

        Raises:
            UserError: the examples have no labels.
        """
        other = {"language": language} if language else {}
        examples = type(self).reader(self.task, split, tfds, source, **other)
        if examples.labels is None:
            raise UserError(
                f"split {split!r} of {source or self.task.source} has no labels: give one with "
                "labels to train or score (`finetune predict` and `submit` answer this one)"
            )
        return examples

    def read_splits(
        self,
        splits: Sequence[str],
        tfds: Tfds | None,
        source: str | None,
        table: TableSettings,
        language: str | None = None,
    ) -> dict[str, Any]:
        """Reads the examples of several splits, by split; see `read`.

        If the source has a single split (`names_of` returns None), `table` chooses the examples
        that are held out as the development set, and "train" has the others.
        """
        if (names := self.names_of(splits, tfds, source)) is not None:
            given = tfds, source, language
            return {split: self.read(names.get(split, split), *given) for split in splits}
        named = source or self.task.source
        known = ("train", *self.task.validation_splits)
        if other := sorted({*splits} - {*known, "all"}):
            raise UserError(
                f"{named} is one file and has no split {other[0]!r}: give {', '.join(known)} (held "
                "out of it) or all, or put {split} in the file's name"
            )
        examples = self.read("train", tfds, source, language)
        held = table.held(examples.labels, str(named))
        return {
            split: examples.take(np.flatnonzero(held != (split == "train"))) for split in splits
        }

    def names_of(
        self, splits: Sequence[str], tfds: Tfds | None, source: str | None
    ) -> dict[str, str] | None:
        """Maps split names to the source's own names; None if the source has only "train".

        A file without {split} in its name has only "train", and so has a user's TFDS or Hugging
        Face data set without a split named validation, dev or valid.
        """
        parsed = Source.of(source or self.task.source or "")
        saved = saved_splits(parsed) if parsed.kind == "datasets" else ()
        named = saved or parsed.kind == "tfds"
        if named and self.task.own and {*splits} <= {"train", "validation"}:
            there = saved or open_set(parsed.place, "train", tfds).builder.info.splits
            alike = next((name for name in ("validation", "dev", "valid") if name in there), None)
            return {"validation": alike} if alike else None
        return {} if parsed.has_splits or not {*splits} - {"all"} else None

    @property
    def longest(self) -> int:
        return self.limits.max_length

    def least_length(self, spans: SpanLimits) -> int:
        """Smallest `max_length` that leaves room for text in a row."""
        return 5 if self.task.second else 3

    def readable(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Converts rows of words to characters `(..., L, C)` if the network reads characters."""
        if isinstance(self.vocabulary, CharacterWords):
            return {**rows, "token_ids": self.vocabulary.characters_of(rows["token_ids"])}
        return rows

    @abc.abstractmethod
    def encode(self, vocabulary: PieceVocabulary, examples: Any, limits: Limits) -> EncodedExamples:
        """Tokenizes examples to rows. An example may have several rows."""

    def encoded(
        self, vocabulary: PieceVocabulary, examples: Any, limits: Limits
    ) -> EncodedExamples:
        """Calls `encode`, and adds the words' characters for a model that reads characters."""
        if not isinstance(vocabulary, CharacterWords):
            return self.encode(vocabulary, examples, limits)
        words = vocabulary.opened()
        encoded = self.encode(words, examples, limits)
        return dataclasses.replace(encoded, characters=words.characters)

    @abc.abstractmethod
    def make_network(self, config: EncoderConfig, head_dropout: float, policy) -> keras.Model:
        """Makes the encoder with the head of this kind; it is not built yet."""

    @property
    @abc.abstractmethod
    def objective(self) -> Callable:
        """Objective on the answers, which validation measures."""

    def learnt(self, config: EncoderConfig, language_weight: float) -> Callable:
        """Returns the training objective; for `language_weight` see `FinetuningRecipe`."""
        return self.objective

    @abc.abstractmethod
    def outputs(
        self,
        logits: np.ndarray,
        encoded: EncodedExamples,
        examples: Any,
        limits: Limits,
    ) -> Any:
        """Converts logits to outputs, one for each example.

        Args:
            logits: logits of all rows, padded with -1e9 to the longest row.
            encoded: the rows of `examples`.
        """

    def finite(self, outputs: Any) -> bool:
        """Whether no output is NaN or infinite."""
        return all(np.isfinite(values).all() for values in keras.tree.flatten(outputs))

    def decide(self, outputs: Any) -> Any:
        """Converts outputs to predictions."""
        return outputs

    @abc.abstractmethod
    def score(self, predictions: Any, examples: Any) -> dict[str, float]:
        """Computes the task's metrics by name, and "score", the mean of its main metrics."""

    def answers(self, outputs: Any, examples: Any) -> Any:
        """Converts outputs to predictions as JSON values."""
        return self.decide(outputs)

    @abc.abstractmethod
    def line(self, answer: Any) -> str:
        """Formats an answer of `rows` as a command prints it."""

    def baseline(self, train: Any) -> Callable[[Any], Any] | None:
        """Fits a predictor without a network to the training set; None if the kind has none."""
        return None

    def measure(self, outputs: Any, examples: Any) -> dict[str, float]:
        """Scores outputs. All metrics are NaN if an output is not finite."""
        metrics = self.score(self.decide(outputs), examples)
        # Without this, the argmax of NaN would score like the first class.
        return metrics if self.finite(outputs) else dict.fromkeys(metrics, float("nan"))

    def with_score(self, metrics: dict[str, float]) -> dict[str, float]:
        """Adds "score", the mean of the task's main metrics."""
        return {**metrics, "score": float(np.mean([metrics[name] for name in self.task.metrics]))}


def named_classes(model: Any, task: str) -> tuple[Task, Limits, keras.Model, PieceVocabulary]:
    """Arguments of a `LabelledTask` for a classifier that no run of this library trained.

    Args:
        model: a `macaron_tf.pretrained.Pretrained`; its `labels` name the classes.
        task: a name in `OWN_TASKS`.

    Raises:
        UserError: not every class has a name.
    """
    outputs, labels = model.network.head.num_classes, tuple(model.labels)
    if len(labels) != (outputs if outputs > 1 else 0):
        raise UserError(
            f"{model.checkpoint or model.name} is a classifier of {outputs} classes, and "
            f"{len(labels)} have a name: save it with macaron_tf.load's `labels`, or export its "
            ".keras file by `python -m export.keras_model` with --labels"
        )
    described = TableSettings(text=("text",), classes=labels).described(get_task(task, own=True))
    longest = min(model.config.longest or _MAX_LENGTH, _MAX_LENGTH)
    limits = Limits(
        model.max_length or model.trained_length or longest,
        causal=model.config.causal,
        language=model.language,
        languages=tuple(model.languages),
        embeds_languages=embeds_languages(model.config),
    )
    return described, limits, model.network, model.vocabulary


def embeds_languages(config: Any) -> bool:
    """Whether a model has language embeddings."""
    return isinstance(config, EncoderConfig) and config.num_languages > 0
