"""The interface of a kind of task: what a model reads, and the graphs of its answers."""

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io.paths import refuse_damage
from macaron_tf.io.serving import as_rows

EXAMPLE = "A dog is running."  # a text for models of any kind
_Graph = tuple[Callable[..., dict[str, tf.Tensor]], Mapping[str, tf.DType]]


class TaskKind(abc.ABC):
    """A kind of task, and the network and vocabulary that answer it.

    `serve` is a graph of stock operations from strings to answers. Every way to ask a model runs
    it: `Pretrained.predict`, a command's `--json`, the SavedModel, a server.

    Args:
        network: built, with its weights; None before there is one.
        vocabulary: the network's own.

    Attributes:
        name: the kind in a word, for people.
        inputs: dtypes of the inputs of `serve` by name, each `(B,)`. Those that are no strings have
            a value in `controls`, for callers who leave them out.
        takes: names of the options of `with_options`.
    """

    name: ClassVar[str]
    inputs: Mapping[str, tf.DType] = {"text": tf.string}
    controls: ClassVar[Mapping[str, int | float]] = {}
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, network: keras.Model | None = None, vocabulary: Any = None):
        self.network = network
        self.vocabulary = vocabulary

    @classmethod
    @abc.abstractmethod
    def of(cls, model: Any) -> Self | None:
        """The task of a `macaron_tf.pretrained.Pretrained`; None where it is of another kind."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.texts)} -> answers>"

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the inputs that are strings."""
        return tuple(name for name, dtype in self.inputs.items() if dtype == tf.string)

    def columns(self, lines: Sequence[str], first: int = 1) -> list[list[str]]:
        """The texts of lines, numbered from `first` on, of each input: tabs stand between them."""
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
        """The signature `serving_default`, its inputs in the order of `inputs`, in-graph."""

    def functions(self) -> dict[str, _Graph]:
        """The functions of all signatures and the dtypes of their inputs, by the name."""
        return {"serving_default": (self.serve, self.inputs)}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Outputs of `serve` as one answer a row, without the padding of shorter rows.

        An answer is plain Python: the value of a single output, or a dictionary of several.
        """
        return as_rows(outputs)

    def with_options(self, **options: Any) -> Self:
        """The task with options that its graph is made with, such as `n_best`."""
        given, takes = next(iter(options), None), (*self.takes, *self.controls)
        known = f"it takes {', '.join(takes)}" if takes else "leave it out"
        raise UserError(f"{given}={options[given]!r} is no option of a {self.name}: {known}")

    def stream(self, text: str, **options: Any):
        """The answer to one text in parts, as they are made."""
        raise UserError(f"a {self.name} writes no text piece by piece: ask it by predict")

    def likelihoods(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Of each text `log_probs`, the natural logarithm of its probability, and `tokens`.

        A kind whose graph says so has a signature `score` instead.
        """
        raise UserError(f"a {self.name} does not say how likely a text is: ask it by predict")

    def facts(self) -> dict[str, Any]:
        """What the record of an export says of the task."""
        return {}

    def typical_texts(self) -> Sequence[str]:
        """Texts whose requests make a server ready, one for each function that is compiled."""
        return (EXAMPLE,)


def recorded(model: Any) -> contextlib.AbstractContextManager[None]:
    """Turns an error in what a loaded model's model.json says of its task into a sentence."""
    return refuse_damage(f"{model.name}/model.json", "save or train the model again")


def require(good: tf.Tensor, message: str, value: Any) -> Any:
    """The value, or an InvalidArgumentError of the message and the numbers of rows not `good (B,)`.

    A server that merged requests runs the others again without them.
    """
    bad = tf.reshape(tf.where(tf.logical_not(good)), [-1])
    whole = tf.debugging.Assert(tf.reduce_all(good), [message, "rows:", bad], summarize=-1)
    with tf.control_dependencies([whole]):
        return tf.identity(value)
