"""Base class of task types with labelled data: reading, tokenization, objective and metrics."""

import abc
import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.data.tasks.questions import SpanLimits
from macaron_tf.errors import UserError, plural
from macaron_tf.models import EncoderConfig, EncoderTokenClassifier
from macaron_tf.models.model_parts import ModelParts, TaskSettings
from macaron_tf.objectives import Objective
from macaron_tf.settings import Count, Settings
from macaron_tf.tasks.base import OnePass
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.words import CharacterWords

_MAX_LENGTH = 128  # maximum row length of a classifier whose training length is unknown


@dataclasses.dataclass(frozen=True)
class Limits(Settings):
    """Length and layout of the rows that a model reads.

    Attributes:
        max_length: maximum number of ids in a row, including special ids.
        spans: length limits for extractive question answering.
        causal: whether the model is causal. Rows of causal models have another layout, see
            `encode_pairs`.
        language: language code of the texts; `None` means the model's first language.
        languages: the model's language codes, in the order of its language embeddings.
        embeds_languages: whether the model has language embeddings.
        special: whether rows contain special ids, see `encode_pairs`.
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
            names = ", ".join(self.languages)
            advice = f"give one of {names}" if names else "leave language out"
            raise UserError(f"language={self.language!r} is not a language of the model: {advice}")

    @property
    def language_id(self) -> int:
        """Index of `language` in the model's language embeddings, or 0 if either is missing."""
        has_embedding = self.language and self.embeds_languages
        return self.languages.index(self.language) if has_embedding else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledSettings(TaskSettings):
    """Settings of a `LabelledTask`: its definition, and the rows that the model reads."""

    kind = "labelled"
    task: Task
    limits: Limits


class LabelledTask(OnePass):
    """Base class of task types that are trained on labelled examples.

    Each subclass has its own types of examples, outputs and predictions. Examples have a length and
    `labels`, which are `None` if the labels are missing or withheld. Outputs are computed from the
    network's logits. Predictions are computed from outputs.

    Args:
        limits: length and layout of the rows. `None` is only valid without a network.
        tuned: dict mapping metric name to validation score of the network. The dict is empty if the
            network was not validated. The no-answer threshold of `QuestionAnswering` comes from
            this dict.

    Attributes:
        kind: value of `Task.kind` that the class supports.
        reader: function that reads examples, see `read_examples`.
        row_shape: `(R,)` if an example has R rows, as in multiple choice, and `()` otherwise.
        truncates: whether long texts are truncated. If False, long texts are split into windows.
        answer: short description of a prediction.
    """

    kind: ClassVar[str]
    reader: ClassVar[Callable]
    limits: Any
    row_shape: tuple[int, ...] = ()
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
        self.longest = limits.max_length if limits else None

    def facts(self) -> dict[str, Any]:
        labels, max_length = list(self.task.labels), self.limits.max_length
        return {"task": self.task.name, "labels": labels, "max_length": max_length}

    def read(
        self, split: str, tfds: Tfds | None, source: str | None, language: str | None = None
    ) -> Any:
        """Reads the labelled examples of a split, and raises a `UserError` if labels are missing.

        For the arguments, see `read_examples`.
        """
        language_option = {"language": language} if language else {}
        examples = type(self).reader(self.task, split, tfds, source, **language_option)
        if examples.labels is None:
            raise UserError(f"split {split!r} of {source or self.task.source} has no labels")
        return examples

    def read_splits(
        self,
        splits: Sequence[str],
        tfds: Tfds | None,
        source: str | None,
        table: TableSettings,
    ) -> dict[str, Any]:
        """Returns the examples of several splits, as a dict from split to the result of `read`.

        If the source has no validation split (`split_names` returns `None`), `table.held_out_mask`
        selects the validation examples among the examples of the split "train". The split "train"
        then has the remaining examples, and the split "all" has all examples.
        """
        if (names := self.split_names(splits, tfds, source)) is not None:
            return {split: self.read(names.get(split, split), tfds, source) for split in splits}
        source_name = source or self.task.source
        known_splits = ("train", *self.task.validation_splits)
        if unknown_splits := sorted({*splits} - {*known_splits, "all"}):
            advice = "all, or use a file per split, with {split} in its name"
            choices = f"choose {', '.join(known_splits)} or {advice}"
            raise UserError(f"{source_name} has no split {unknown_splits[0]!r}: {choices}")
        examples = self.read("train", tfds, source)
        is_validation = table.held_out_mask(examples.labels, str(source_name))
        chosen = {"all": np.ones_like(is_validation), "train": ~is_validation}
        return {
            split: examples.take(np.flatnonzero(chosen.get(split, is_validation)))
            for split in splits
        }

    def split_names(
        self, splits: Sequence[str], tfds: Tfds | None, source: str | None
    ) -> dict[str, str] | None:
        """Returns a dict that maps split names of the task to split names of the source.

        For example, the dict is `{"validation": "dev"}` if the validation split of the source is
        called dev. A split that is not in the dict has the same name in the source.

        Returns `None` if the validation examples must be drawn from the split "train". The source
        is then a file without {split} in its name, a saved Hugging Face dataset without splits, or,
        for a task on the user's own table, a TFDS or Hugging Face dataset without a split
        validation, dev or valid.
        """
        parsed = Source.of(source or self.task.source or "")
        saved = parsed.saved_splits
        has_named_splits = saved or parsed.kind == "tfds"
        if has_named_splits and self.task.own and {*splits} <= {"train", "validation"}:
            source_splits = saved or open_set(parsed.location, "train", tfds).builder.info.splits
            for name in ("validation", "dev", "valid"):
                if name in source_splits:
                    return {"validation": name}
            return None
        return {} if parsed.has_splits or not {*splits} - {"all"} else None

    def with_characters(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Replaces token ids by character ids `(..., L, C)` if the network reads characters.

        C is the number of character ids per word.
        """
        if isinstance(self.vocabulary, CharacterWords):
            return {**rows, "token_ids": self.vocabulary.characters_of(rows["token_ids"])}
        return rows

    @abc.abstractmethod
    def encode(self, vocabulary: PieceVocabulary, examples: Any, limits: Limits) -> EncodedExamples:
        """Tokenizes examples. The result may have several rows per example."""

    def encoded(
        self, vocabulary: PieceVocabulary, examples: Any, limits: Limits
    ) -> EncodedExamples:
        """Tokenizes examples by `encode`, and adds character ids if the model reads characters."""
        if not isinstance(vocabulary, CharacterWords):
            return self.encode(vocabulary, examples, limits)
        character_vocabulary = vocabulary.empty_copy()
        encoded = self.encode(character_vocabulary, examples, limits)
        return dataclasses.replace(encoded, characters=character_vocabulary.characters)

    @abc.abstractmethod
    def make_network(self, config: EncoderConfig, head_dropout: float, policy) -> keras.Model:
        """Creates a network with a head for this task type, without building it."""

    @property
    @abc.abstractmethod
    def objective(self) -> Objective:
        """Objective of validation, and of training without an auxiliary loss."""

    @abc.abstractmethod
    def outputs(self, logits: np.ndarray, encoded: EncodedExamples, examples: Any) -> Any:
        """Converts logits to outputs, with one output per example.

        Args:
            logits: the network's outputs for all rows, padded with -1e9 to the longest row.
            encoded: tokenized rows of `examples`.
        """

    def is_finite(self, outputs: Any) -> bool:
        return all(np.isfinite(values).all() for values in keras.tree.flatten(outputs))

    def decide(self, outputs: Any) -> Any:
        """Converts outputs of the method `outputs` to predictions."""
        return outputs

    @abc.abstractmethod
    def score(self, predictions: Any, examples: Any) -> dict[str, float]:
        """Computes a dict mapping metric name to value. "score" is the mean of `Task.metrics`."""

    def answers(self, outputs: Any, examples: Any) -> Any:
        """Converts outputs to predictions that consist of JSON values."""
        return self.decide(outputs)

    @abc.abstractmethod
    def line(self, answer: Any) -> str:
        """Formats an answer from `rows` as text that a command prints."""

    @abc.abstractmethod
    def constants(self, train: Any, examples: Any) -> Iterable[Any]:
        """Yields predictions that are equal for all examples; `train` has the answers to try."""

    def measure(self, outputs: Any, examples: Any) -> dict[str, float]:
        """Computes the metrics of outputs. All metrics are NaN if an output is not finite."""
        metrics = self.score(self.decide(outputs), examples)
        # Without this check, NaN logits would count as predictions of the first class.
        return metrics if self.is_finite(outputs) else dict.fromkeys(metrics, float("nan"))

    def with_score(self, metrics: dict[str, float]) -> dict[str, float]:
        """Returns a copy of `metrics` with the key "score", the mean of `Task.metrics`."""
        return {**metrics, "score": float(np.mean([metrics[name] for name in self.task.metrics]))}


def of_classes(
    model: ModelParts, labels: Sequence[str] = (), max_length: int | None = None
) -> LabelledSettings:
    """Returns the settings of a classifier or tagger that your own code trained.

    Args:
        labels: names of the classes, class 0 first.
        max_length: maximum row length in tokens; `None` means the model's, but at most 128.
    """
    num_outputs = model.network.head.num_classes
    if len(labels) != (num_outputs if num_outputs > 1 else 0):
        found = f"{num_outputs} classes, but {len(labels)} class {plural('name', len(labels))}"
        raise UserError(f"{model.card.title} has {found}: give settings=of_classes(model, labels)")
    task = "classify" if num_outputs > 1 else "regress"
    task = "tag" if isinstance(model.network, EncoderTokenClassifier) else task
    table = TableSettings(text=("text",), classes=tuple(labels))
    longest = min(model.config.longest or _MAX_LENGTH, _MAX_LENGTH)
    limits = Limits(
        max_length or longest,
        causal=model.config.causal,
        embeds_languages=embeds_languages(model.config),
    )
    return LabelledSettings(task=table.described(get_task(task, own=True)), limits=limits)


def embeds_languages(config: Any) -> bool:
    """Returns whether a model with the configuration `config` has language embeddings."""
    return isinstance(config, EncoderConfig) and config.num_languages > 0
