"""Base classes of task types, which map texts to a network's answers in a TensorFlow graph."""

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import LineError, UserError, plural
from macaron_tf.io.serving import EXAMPLE, EXAMPLE_TEXTS, as_rows
from macaron_tf.models.model_parts import TaskSettings

# Example texts for the second input of a task.
GraphFunction = tuple[Callable[..., dict[str, tf.Tensor]], Mapping[str, tf.DType]]


class TaskKind(abc.ABC):
    """Base class of task types. A task computes answers to texts with a network.

    `serve` builds a graph of TensorFlow operations from strings to answers. The same graph runs in
    `Model.predict`, in commands with `--json`, in a SavedModel and in a server.

    Args:
        network: built network with its weights; `None` means that the network does not exist yet.

    Attributes:
        name: short name of the task type, for messages.
        pipeline: name of the task type on the Hugging Face Hub.
        inputs: dict mapping the name of each input of `serve` to its dtype. Inputs have the shape
            `(B,)`.
        controls: dict mapping the name of each input that is not a string to its default value.
        longest: maximum number of ids in a row, including special ids; `None` means no limit.
        truncates: whether long texts are truncated.
        takes: names of the options that `with_options` accepts.
    """

    name: ClassVar[str]
    pipeline: ClassVar[str]
    network: Any
    inputs: Mapping[str, tf.DType] = {"text": tf.string}
    controls: ClassVar[Mapping[str, int | float]] = {}
    longest: int | None = None
    truncates: ClassVar[bool] = False
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, network: keras.Model | None = None, vocabulary: Any = None):
        self.network = network
        self.vocabulary = vocabulary

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.texts)} -> answers>"

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the inputs that are strings."""
        return tuple(name for name, dtype in self.inputs.items() if dtype == tf.string)

    def columns(self, lines: Sequence[str], first: int = 1) -> list[list[str]]:
        """Splits lines at tabs, and returns one list of texts for each name in `texts`.

        If there is only one name, lines are not split. `first` is the line number of the first line
        in the `LineError` about a wrong number of columns.
        """
        names = self.texts
        if len(names) == 1:
            return [[*lines]]
        rows = [line.split("\t") for line in lines]
        for line_number, row in enumerate(rows, first):
            if len(row) != len(names):
                found = f"line {line_number} has {len(row)} {plural('column', len(row))}"
                advice = f"write {', '.join(names)}, separated by tabs, as printf 'A\\tB\\n' does"
                raise LineError(f"{found}: {advice}")
        return [[row[column] for row in rows] for column in range(len(names))]

    @abc.abstractmethod
    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes the outputs of the signature `serving_default` from the tensors in `inputs`."""

    def functions(self) -> dict[str, GraphFunction]:
        """Returns a dict mapping signature name to the signature's function and input dtypes."""
        return {"serving_default": (self.serve, self.inputs)}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Converts outputs of `serve` to a list of answers, and removes padding.

        An answer is a plain Python value, or a dict if `serve` has several outputs.
        """
        return as_rows(outputs)

    def with_options(self, **options: Any) -> Self:
        """Returns a copy of the task with changed options, such as `n_best`."""
        for name in [name for name in options if name not in self.takes]:
            known = f"whose options are {', '.join(self.takes) or 'none'}"
            raise UserError(f"{name}={options[name]!r} is not possible for a {self.name}, {known}")
        return self.changed(**options)

    def changed(self, **attributes: Any) -> Self:
        """Returns a copy of the task with changed attributes."""
        copied = copy.copy(self)
        vars(copied).update(attributes)
        return copied

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Yields each part of the answer to one text when it is decoded."""
        raise UserError(f"a {self.name} cannot stream its answers: use predict instead")

    def likelihoods(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Computes the log-probability (`log_probs`) and the token count (`tokens`) of each text.

        A task type that computes log-probabilities in a graph has a signature `score` instead.
        """
        raise UserError(f"a {self.name} cannot score texts: use predict instead")

    def facts(self) -> dict[str, Any]:
        """Returns a dict of JSON values about the task, for the record of an exported model."""
        return {}

    def typical_texts(self) -> Sequence[str]:
        """Returns texts for warm-up requests, which compile all functions that `serve` may call."""
        return (EXAMPLE,)

    def examples(self) -> list[str]:
        """Returns an example input: a list with one text for each name in `texts`."""
        text = self.typical_texts()[0]
        return [EXAMPLE_TEXTS.get(name, text) for name in self.texts]


@dataclasses.dataclass(frozen=True)
class DecodingSettings(TaskSettings):
    """Base class of the settings of models that write texts.

    Attributes:
        ends: keyword arguments of the `TextGenerator` or `SequenceGenerator`: the token ids that
            precede a source and an answer, and that end a text. An empty dict means the defaults.
        generation: generation settings of a model from transformers, with that library's ids. The
            model is saved with these settings for transformers again.
    """

    ends: Any = dataclasses.field(default_factory=dict, kw_only=True)
    generation: Any = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def starts(self) -> bool:
        """Whether a source begins with [CLS]."""
        return bool(self.ends.get("source_start"))


class Decoding(TaskKind):
    """Base class of task types that decode their answers token by token.

    The `decoder` is the network, or another decoding engine such as a `LiteDecoder`.
    """

    decoder: Any

    @classmethod
    @abc.abstractmethod
    def from_exported(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        """Creates the task of an exported model from its record, the result of `facts`."""

    @abc.abstractmethod
    def with_decoder(self, decoder: Any) -> Self:
        """Returns a copy of the task that uses another decoding engine, such as a `LiteDecoder`."""


class OnePass(TaskKind):
    """Base class of task types that answer with one forward pass of the network.

    `serve` calls three methods. `compute` uses no strings, so an engine other than TensorFlow can
    run this step:

        rows, kept = task.prepare(*texts)        # texts -> token ids
        computed = task.compute(rows)            # forward pass
        answers = task.conclude(computed, kept)  # network outputs -> answers
    """

    @abc.abstractmethod
    def prepare(self, *inputs: tf.Tensor) -> tuple[dict[str, tf.Tensor], Any]:
        """Converts texts to the network's inputs, padded to the longest row, and further tensors.

        Only `conclude` reads the further tensors.
        """

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes the network's outputs in float32. Padding has no effect on the outputs."""
        return tf.cast(self.network(rows, training=False), tf.float32)

    @abc.abstractmethod
    def conclude(self, computed: tf.Tensor, extras: Any) -> dict[str, tf.Tensor]:
        """Converts outputs of `compute`, and the further tensors, to outputs of `serve`."""

    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        rows, extras = self.prepare(*inputs)
        return self.conclude(self.compute(rows), extras)


def trimmed(rows: Sequence[dict[str, Any]], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Shortens the lists in each row to the row's count, and so removes padding."""
    return [
        {name: v[:count] if isinstance(v, list) else v for name, v in row.items()}
        for row, count in zip(rows, counts, strict=True)
    ]


def require(is_good: tf.Tensor, message: str, value: Any) -> Any:
    """Returns `value`, and makes the graph raise InvalidArgumentError if a row is bad.

    The error contains `message` and the indices of the rows where `is_good (B,)` is False. A server
    that merges requests into one batch uses the indices to run the good rows again.
    """
    bad = tf.reshape(tf.where(tf.logical_not(is_good)), [-1])
    assertion = tf.debugging.Assert(tf.reduce_all(is_good), [message, "rows:", bad], summarize=-1)
    with tf.control_dependencies([assertion]):
        return tf.identity(value)
