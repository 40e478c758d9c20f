"""Interfaces for a task's network in other runtimes: the model to export, and the opened file."""

import functools
from collections.abc import Mapping
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.kernels import implementation_scope
from macaron_tf.tasks.base import OnePass, TaskKind

OUTPUT = "computed"


class OpenedNetwork(Protocol):
    """A task's network that a runtime has opened from a file."""

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the outputs of `OnePass.compute` in float32."""


class TaskNetwork(keras.Model):
    """`OnePass.compute` as a Keras model, from any number of rows of ids to `{"computed": ...}`.

    An export uses one instance for all formats, because tracing `rows` takes a second.
    """

    def __init__(self, task: TaskKind):
        super().__init__(name="network")
        self.network, self.task, self.built = task.network, task, True

    def call(self, rows):
        with implementation_scope("loop"):  # TensorFlow's own operations
            return {OUTPUT: self.task.compute(rows)}

    @functools.cached_property
    def rows(self) -> dict[str, tf.Tensor]:
        """Symbolic inputs of `task.compute`; batch and length are open dimensions."""
        specs = [tf.TensorSpec([None], dtype) for dtype in self.task.inputs.values()]
        prepare = tf.function(lambda *texts: self.task.prepare(*texts)[0], autograph=False)
        return prepare.get_concrete_function(*specs).structured_outputs

    def row_signature(self) -> list[dict[str, keras.InputSpec]]:
        """The `input_signature` of Keras's `export`."""
        return [
            {
                name: keras.InputSpec(ids.dtype.name, ids.shape.as_list(), name=name)
                for name, ids in self.rows.items()
            }
        ]


def one_pass(task: TaskKind, where: str, mend: str) -> None:
    """Raises a UserError for a task that decodes token by token.

    Args:
        task: the task.
        where: beginning of the message.
        mend: end of the message, what to do.
    """
    if not isinstance(task, OnePass):
        raise UserError(
            f"{where}: a {task.name} runs its network once for each token instead of once for a "
            f"text: {mend}"
        )
