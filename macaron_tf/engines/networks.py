"""A task's network as a Keras model for export, and the interface of an exported network."""

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
    """Interface of a task's network that LiteRT, ONNX Runtime or OpenVINO has loaded."""

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the network's outputs in float32 from rows of ids (see `OnePass.compute`)."""


class TaskNetwork(keras.Model):
    """Keras model that maps rows of ids to `{"computed": outputs}` by `OnePass.compute`.

    An export uses one instance for all formats, because tracing `rows` takes about a second.
    """

    def __init__(self, task: TaskKind):
        super().__init__(name="network")
        self.network, self.task, self.built = task.network, task, True

    def call(self, rows):
        with implementation_scope("loop"):  # TensorFlow's own operations
            return {OUTPUT: self.task.compute(rows)}

    @functools.cached_property
    def rows(self) -> dict[str, tf.Tensor]:
        """Symbolic tensors of unknown batch size and row length, by input of `task.compute`."""
        specs = [tf.TensorSpec([None], dtype) for dtype in self.task.inputs.values()]
        prepare = tf.function(lambda *texts: self.task.prepare(*texts)[0], autograph=False)
        return prepare.get_concrete_function(*specs).structured_outputs

    def row_signature(self) -> list[dict[str, keras.InputSpec]]:
        """Returns the `input_signature` for Keras's `export`."""
        return [
            {
                name: keras.InputSpec(ids.dtype.name, ids.shape.as_list(), name=name)
                for name, ids in self.rows.items()
            }
        ]


def require_one_pass(task: TaskKind, where: str, mend: str) -> None:
    """Raises a UserError for a task that decodes token by token."""
    if not isinstance(task, OnePass):
        raise UserError(
            f"{where} does not support a {task.name}, which decodes token by token: {mend}"
        )
