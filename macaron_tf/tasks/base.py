"""The interface of a kind of task: a model's inputs, and the graphs of its answers."""

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

_Graph = tuple[Callable[..., dict[str, tf.Tensor]], Mapping[str, tf.DType]]


class TaskKind(abc.ABC):
    """A kind of task, with the network and vocabulary that answer it.

    `serve` builds a graph of TensorFlow's own operations from strings to answers. Every way to ask
    a model runs that graph: `Pretrained.predict`, a command's `--json`, the SavedModel, a server.

    Args:
        network: built, with its weights; None before it is built.
        vocabulary: the network's vocabulary.

    Attributes:
        name: the kind in a few words, for messages.
        inputs: dtypes of the inputs of `serve` by name, each input `(B,)`.
        controls: default values of the inputs that are not strings.
        takes: names of the options that `with_options` takes.
    """

    name: ClassVar[str]
    inputs: Mapping[str, tf.DType] = {"text": tf.string}
    controls: ClassVar[Mapping[str, int | float]] = {}
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, network: keras.Model | None = None, vocabulary: Any = None):
        self.network = network
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """The task of a `macaron_tf.pretrained.Pretrained`; None for one of another kind."""
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
        """The graph of the signature `serving_default`; arguments in the order of `inputs`."""

    def functions(self) -> dict[str, _Graph]:
        """Each signature's function and the dtypes of its inputs, by the signature's name."""
        return {"serving_default": (self.serve, self.inputs)}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Converts outputs of `serve` to one answer for each row, without padding.

        An answer is plain Python: the value of a single output, or a dictionary of several.
        """
        return as_rows(outputs)

    def with_options(self, **options: Any) -> Self:
        """A copy of the task whose graph is built with these options, such as `n_best`."""
        for given in [name for name in options if name not in self.takes]:
            said = f"{given}={options[given]!r} is"
            if given in self.controls:
                raise UserError(f"{said} given with each text, to predict: leave it out")
            takes = (*self.takes, *self.controls)
            known = f"it takes {', '.join(takes)}" if takes else "leave it out"
            raise UserError(f"{said} no option of a {self.name}: {known}")
        return self.changed(**options)

    def changed(self, **options: Any) -> Self:
        """A copy with the options in `takes` changed, for a kind that has some."""
        return self

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """The answer to one text in parts, as they are made."""
        raise UserError(f"a {self.name} writes no text piece by piece: ask it by predict")

    def likelihoods(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """The natural logarithm of each text's probability, `log_probs`, and its `tokens`.

        A kind that computes them in a graph has a signature `score` instead of this method.
        """
        raise UserError(f"a {self.name} does not say how likely a text is: ask it by predict")

    def facts(self) -> dict[str, Any]:
        """Facts about the task for the record of an export, as JSON."""
        return {}

    def typical_texts(self) -> Sequence[str]:
        """Texts of warm-up requests: one for each function that is compiled."""
        return (EXAMPLE,)


class Decoding(TaskKind):
    """A kind of task that writes its answers one token after the other.

    Attributes:
        decoder: decodes: the network, or an engine in its place.
    """

    decoder: Any

    @classmethod
    @abc.abstractmethod
    def reopened(cls, decoder: Any, vocabulary: Any, facts: Mapping[str, Any]) -> Self:
        """The task of an export, from its `facts`; its network is an engine, a `LiteDecoder`."""

    @abc.abstractmethod
    def asking(self, decoder: Any) -> Self:
        """A copy that decodes by another engine, such as a `LiteDecoder` of its network."""

    @abc.abstractmethod
    def begin(self, text: tf.Tensor) -> tuple[Prompts, Any, State]:
        """Reads texts `(B,)`: the decoder's prompts, its context, and the state of one text each.

        Raises InvalidArgumentError for a text that the task refuses.
        """


class OnePass(TaskKind):
    """A kind of task that answers by one pass of its network over rows of ids.

    `serve` has three steps, the second on numbers alone, so that an engine other than TensorFlow
    can run it:

        rows, kept = task.prepare(*texts)        # texts to rows of ids
        computed = task.compute(rows)            # the network
        answers = task.conclude(computed, kept)  # numbers to answers

    Attributes:
        longest: most ids of a row, special ones included; None = no limit.
    """

    longest: int | None = None

    @abc.abstractmethod
    def prepare(self, *inputs: tf.Tensor) -> tuple[dict[str, tf.Tensor], Any]:
        """The network's inputs for texts, and a structure of tensors for `conclude`.

        Rows are padded to the longest of them.
        """

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """The network's outputs for rows, float32. More padding in the rows changes no answer."""
        return tf.cast(self.network(rows, training=False), tf.float32)

    @abc.abstractmethod
    def conclude(self, computed: tf.Tensor, kept: Any) -> dict[str, tf.Tensor]:
        """The outputs of `serve` from those of `compute`."""

    def serve(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        rows, kept = self.prepare(*inputs)
        return self.conclude(self.compute(rows), kept)


def recorded(model: Any) -> contextlib.AbstractContextManager[None]:
    """Turns an error in the task's fields of a model.json into a UserError that names the file."""
    return refuse_damage(f"{model.name}/model.json", "save or train the model again")


def require(good: tf.Tensor, message: str, value: Any) -> Any:
    """Returns the value; raises InvalidArgumentError where a row of `good (B,)` is False.

    The error has the message and the numbers of those rows, so that a server that merged requests
    can run the other rows again.
    """
    bad = tf.reshape(tf.where(tf.logical_not(good)), [-1])
    whole = tf.debugging.Assert(tf.reduce_all(good), [message, "rows:", bad], summarize=-1)
    with tf.control_dependencies([whole]):
        return tf.identity(value)
