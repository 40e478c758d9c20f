"""Base classes of the kinds of tasks: from texts to a network's answers, in a graph."""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.decoding.sampling import Prompts, State
from macaron_tf.errors import UserError
from macaron_tf.io.paths import refuse_damage
from macaron_tf.io.serving import EXAMPLE, as_rows

# Examples for inputs that go with another text.
_SECOND = {"second": "A pet moves.", "question": "What is running?"}
_Graph = tuple[Callable[..., dict[str, tf.Tensor]], Mapping[str, tf.DType]]


class TaskKind(abc.ABC):
    """A kind of task, with the network and the vocabulary that answer it.

    `serve` builds a graph of TensorFlow operations from strings to answers. Every way to ask a
    model runs this graph: `Pretrained.predict`, a command's `--json`, a SavedModel and a server.

    Args:
        network: built, with its weights; None if it is not built yet.
        vocabulary: the network's vocabulary.

    Attributes:
        name: the kind in a few words, for messages.
        pipeline: name of the kind on Hugging Face's hub.
        inputs: dtypes of the inputs of `serve` by name; each input has shape `(B,)`.
        controls: default values of the inputs that are not strings.
        takes: names of the options that `with_options` accepts.
    """

    name: ClassVar[str]
    pipeline: ClassVar[str]
    inputs: Mapping[str, tf.DType] = {"text": tf.string}
    controls: ClassVar[Mapping[str, int | float]] = {}
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, network: keras.Model | None = None, vocabulary: Any = None):
        self.network = network
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Makes the task of a `Pretrained`; None if this class cannot serve its model."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.texts)} -> answers>"

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the inputs that are strings."""
        return tuple(name for name, dtype in self.inputs.items() if dtype == tf.string)

    def columns(self, lines: Sequence[str], first: int = 1) -> list[list[str]]:
        """Splits lines at their tabs into a list of texts for each input.

        Args:
            first: number of the first line, for error messages.
        """
        names = self.texts
        if len(names) == 1:
            return [[*lines]]
        rows = [line.split("\t") for line in lines]
        for number, row in enumerate(rows, first):
            if len(row) != len(names):
                raise UserError(
                    f"line {number}: {len(row)} columns, not {len(names)}: give "
                    f"{', '.join(names)}, separated by one tab each"
                )
        return [[row[column] for row in rows] for column in range(len(names))]

    @abc.abstractmethod
    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph of the signature `serving_default`; arguments are as in `inputs`."""

    def functions(self) -> dict[str, _Graph]:
        """Returns each signature's function and its inputs' dtypes, by the signature's name."""
        return {"serving_default": (self.serve, self.inputs)}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Converts outputs of `serve` to a list of answers without padding.

        An answer is a plain Python value, or a dictionary if there are several outputs.
        """
        return as_rows(outputs)

    def with_options(self, **options: Any) -> Self:
        """Returns a copy of the task with options of the graph, such as `n_best`."""
        for given in [name for name in options if name not in self.takes]:
            said = f"{given}={options[given]!r} is"
            if given in self.controls:
                raise UserError(f"{said} given with each text, to predict: leave it out")
            takes = (*self.takes, *self.controls)
            known = f"it takes {', '.join(takes)}" if takes else "leave it out"
            raise UserError(f"{said} no option of a {self.name}: {known}")
        return self.changed(**options)

    def changed(self, **options: Any) -> Self:
        """Returns a copy with changed options; kinds with options override it."""
        return self

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Yields the answer to one text in parts, as soon as they are decoded."""
        raise UserError(f"a {self.name} writes no text piece by piece: ask it by predict")

    def likelihoods(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Computes the log-probability of each text, `log_probs`, and its number of `tokens`.

        Kinds that compute them in a graph have a signature `score` instead.
        """
        raise UserError(f"a {self.name} does not say how likely a text is: ask it by predict")

    def facts(self) -> dict[str, Any]:
        """Returns facts about the task for an export's record, as JSON values."""
        return {}

    def typical_texts(self) -> Sequence[str]:
        """Returns texts for warm-up requests, one for each function that has to be compiled."""
        return (EXAMPLE,)

    def examples(self) -> list[str]:
        """An example of a question: a text for each of `texts`."""
        text = self.typical_texts()[0]
        return [_SECOND.get(name, text) for name in self.texts]


class Decoding(TaskKind):
    """Base of the kinds of tasks that decode their answers token by token.

    Attributes:
        decoder: the network, or another engine that decodes in its place.
    """

    decoder: Any

    @classmethod
    @abc.abstractmethod
    def reopened(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        """Makes an export's task from its `facts`, with an engine such as a `LiteDecoder`."""

    @abc.abstractmethod
    def asking(self, decoder: Any) -> Self:
        """Returns a copy that decodes with another engine, such as a `LiteDecoder`."""

    @abc.abstractmethod
    def begin(self, text: tf.Tensor) -> tuple[Prompts, Any, State]:
        """Reads texts `(B,)`; returns the decoder's prompts, its context and its first state.

        The graph raises InvalidArgumentError for a text that the task refuses.
        """


class OnePass(TaskKind):
    """Base of the kinds of tasks that answer with one pass of the network over rows of ids.

    `serve` has three steps. The second uses numbers only, so that an engine other than TensorFlow
    can run it:

        rows, kept = task.prepare(*texts)        # texts to rows of ids
        computed = task.compute(rows)            # the network
        answers = task.conclude(computed, kept)  # numbers to answers

    Attributes:
        longest: most ids of a row, with special ones; None: no limit.
    """

    longest: int | None = None

    @abc.abstractmethod
    def prepare(self, *inputs: tf.Tensor) -> tuple[dict[str, tf.Tensor], Any]:
        """Converts texts to the network's inputs, and to tensors that `conclude` needs.

        Rows are padded to the longest one.
        """

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Computes the network's outputs, float32. Padding of the rows does not change answers."""
        return tf.cast(self.network(rows, training=False), tf.float32)

    @abc.abstractmethod
    def conclude(self, computed: tf.Tensor, kept: Any) -> dict[str, tf.Tensor]:
        """Converts outputs of `compute` to outputs of `serve`."""

    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        rows, kept = self.prepare(*inputs)
        return self.conclude(self.compute(rows), kept)


def recorded(model: Any) -> contextlib.AbstractContextManager[None]:
    """Context that turns errors in the task's fields of a model.json into a UserError."""
    return refuse_damage(f"{model.name}/model.json", "save or train the model again")


def require(good: tf.Tensor, message: str, value: Any) -> Any:
    """Returns `value`; the graph raises InvalidArgumentError if a row of `good (B,)` is False.

    The error contains `message` and the numbers of the bad rows. A server that merges requests uses
    them to run the other rows again.
    """
    bad = tf.reshape(tf.where(tf.logical_not(good)), [-1])
    whole = tf.debugging.Assert(tf.reduce_all(good), [message, "rows:", bad], summarize=-1)
    with tf.control_dependencies([whole]):
        return tf.identity(value)
