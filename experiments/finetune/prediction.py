"""Texts to a network's outputs, and those to metrics."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.finetune.kinds import Limits, kind_of
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.text import PieceVocabulary

# What fills up the outputs of short rows: no position of a span, no tag.
_NOTHING = -1e9


class Predictor:
    """Outputs of a fine-tuned network, text by text or of tokenized examples.

    One `tf.function` with a relaxed signature serves all shapes: it is traced once. The network's
    weights are those of the moment. Replicas of the strategy in whose scope it is made share the
    batches.

    Args:
        network: that of the task's kind, built.
        vocabulary: the one it was trained with.
        task: the task.
        limits: what of a text reaches the network.
        batch_size: rows at once.
        tuned: metrics of the validation of these weights, see `TaskKind.outputs`.
    """

    def __init__(
        self,
        network: keras.Model,
        vocabulary: PieceVocabulary,
        task: Task,
        limits: Limits,
        batch_size: int = 32,
        tuned: Mapping[str, float] | None = None,
    ):
        self.network = network
        self.vocabulary = vocabulary
        self.kind = kind_of(task)
        self.limits = limits
        self.batch_size = batch_size
        self.tuned = dict(tuned or {})
        rows = tf.TensorSpec((None, *self.kind.row_shape, None), tf.int32)
        # A partial: TensorFlow counts the traces of a method over all of its objects, and would
        # warn of a grid's one trace a network.
        forward = functools.partial(_forward, network)
        logits = tf.function(forward, input_signature=[rows, rows], autograph=False)
        self._logits = ReplicaMap(tf.distribute.get_strategy(), logits)

    def logits(self, data: ExampleBatches) -> np.ndarray:
        """The network's outputs, in the order of the rows, -1e9 where a row is shorter than others.

        Args:
            data: N tokenized rows.

        Returns:
            (N, ...) float32: a row's output, at the length of the longest row.
        """
        rows = (len(data), *self.kind.row_shape, data.lengths[-1])
        shape = self.network.compute_output_shape({"token_ids": rows})
        found = np.full(shape, _NOTHING, np.float32)
        places: list[np.ndarray] = []  # of (B,), -1 in rows of padding

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for batch in data.evaluation_dataset().as_numpy_iterator():
                places.append(batch["index"])
                yield batch["token_ids"], batch["segment_ids"]

        for number, result in enumerate(self._logits(batches())):
            index, logits = places[number], result["logits"]
            filled = tuple(slice(size) for size in logits.shape[1:])
            found[(index[index >= 0], *filled)] = logits[index >= 0]
        return found

    def of_examples(self, examples: Any) -> Any:
        """The kind's outputs.

        Args:
            examples: of the task; their labels are not looked at.
        """
        encoded = self.kind.encode(self.vocabulary, examples, self.limits)
        return self.outputs(ExampleBatches(encoded, self.batch_size), examples)

    def outputs(self, data: ExampleBatches, examples: Any, logits: np.ndarray | None = None) -> Any:
        """The kind's outputs of examples that are tokenized already.

        Args:
            data: their rows.
            examples: of the task.
            logits: of the rows, where they are there already.
        """
        logits = self.logits(data) if logits is None else logits
        return self.kind.outputs(logits, data.encoded, examples, self.limits, self.tuned)

    def of_texts(self, *columns: Sequence[str]) -> Any:
        """The kind's outputs of texts that are no examples of a set.

        Args:
            columns: as for `TaskKind.of_texts`.
        """
        return self.of_examples(self.kind.of_texts(*columns))


def _forward(
    network: keras.Model, token_ids: tf.Tensor, segment_ids: tf.Tensor
) -> dict[str, tf.Tensor]:
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    return {"logits": tf.cast(network(inputs, training=False), tf.float32)}  # (B, ...)


def measure(
    task: Task, outputs: Mapping[str, Any], examples: Mapping[str, Any]
) -> dict[str, float]:
    """Metrics of development sets: the first one's by their names, others' with the split's before.

    Args:
        task: the task.
        outputs: the kind's, of each split; where one is not finite, its metrics are NaN.
        examples: the splits themselves.
    """
    kind = kind_of(task)
    measured = {split: kind.measure(found, examples[split]) for split, found in outputs.items()}
    return by_split(measured)


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Metrics of several splits in one dict, see `measure`."""
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }
