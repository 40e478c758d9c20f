"""A fine-tuning run, its outputs for texts, and their metrics."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.finetune.kinds import Limits, kind_of
from experiments.finetune.recipe import FinetuningRecipe
from experiments.run import Run, write_json
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.io import paths as storage
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.checkpoints import read_manifest

RESULT = "result.json"
# Fills up the outputs of short rows: no position of a span, no tag.
_PADDING = -1e9


@dataclasses.dataclass(frozen=True)
class FinetuningResult:
    """How a run ended; RUN/result.json.

    Attributes:
        reason: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or `"diverged"`.
        step: updates done; None where the run diverged.
        best_step, best_score: of the best validation; None where none had a finite score.
        metrics: of that validation.
        seconds: wall-clock time; None where the run diverged.
    """

    reason: str
    step: int | None
    best_step: int | None
    best_score: float | None
    metrics: dict[str, float]
    seconds: float | None


class Predictor:
    """Outputs of a fine-tuned network, text by text or of tokenized examples.

    One `tf.function` with a relaxed signature serves all shapes and is traced once; it reads the
    network's current weights. Replicas of the strategy in whose scope it is made share the batches.

    Args:
        network: of the task's kind, built.
        vocabulary: the one it was trained with.
        limits: of the rows that it reads.
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
        """The network's outputs, in the order of the rows; -1e9 fills up shorter rows.

        Args:
            data: N tokenized rows.

        Returns:
            (N, ...) float32: a row's output, at the length of the longest row.
        """
        rows = (len(data), *self.kind.row_shape, data.lengths[-1])
        shape = self.network.compute_output_shape({"token_ids": rows})
        found = np.full(shape, _PADDING, np.float32)
        positions: list[np.ndarray] = []  # of (B,), -1 in rows of padding

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for batch in data.evaluation_dataset().as_numpy_iterator():
                positions.append(batch["index"])
                yield batch["token_ids"], batch["segment_ids"]

        for number, result in enumerate(self._logits(batches())):
            index, logits = positions[number], result["logits"]
            filled = tuple(slice(size) for size in logits.shape[1:])
            found[(index[index >= 0], *filled)] = logits[index >= 0]
        return found

    def of_examples(self, examples: Any) -> Any:
        """The kind's outputs of a task's examples, whose labels are not used."""
        encoded = self.kind.encode(self.vocabulary, examples, self.limits)
        return self.outputs(ExampleBatches(encoded, self.batch_size), examples)

    def outputs(self, data: ExampleBatches, examples: Any, logits: np.ndarray | None = None) -> Any:
        """The kind's outputs of examples that are tokenized already.

        Args:
            data: their rows.
            examples: of the task.
            logits: of the rows; None = they are computed.
        """
        logits = self.logits(data) if logits is None else logits
        return self.kind.outputs(logits, data.encoded, examples, self.limits, self.tuned)

    def of_texts(self, *columns: Sequence[str]) -> Any:
        """The kind's outputs of texts without labels, see `TaskKind.of_texts`."""
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
        outputs: the kind's, by split; where one is not finite, its metrics are NaN.
        examples: by split.
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


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning."""

    recipe_class = FinetuningRecipe

    @property
    def task(self) -> Task:
        """The task that it was trained for."""
        return self.recipe.described

    def build_network(self) -> keras.Model:
        recipe = self.recipe
        network = kind_of(self.task).network(
            recipe.model_config(self.vocabulary.size),
            recipe.head_dropout,
            recipe.training.dtype_policy,
        )
        network.build()
        return network

    def write(self, network: keras.Model, fingerprint: str, **counts: int) -> None:
        (self.path / RESULT).unlink(missing_ok=True)
        super().write(network, fingerprint, **counts)

    def predictor(self, checkpoint: os.PathLike | str | None = None) -> Predictor:
        """Texts to outputs with a checkpoint's weights.

        Args:
            checkpoint: see `load_network`.
        """
        if not isinstance(checkpoint, os.PathLike):
            checkpoint = self.checkpoint(checkpoint)
        return Predictor(
            self.load_network(checkpoint),
            self.vocabulary,
            self.task,
            self.recipe.limits,
            self.recipe.batch_size,
            self.tuned(checkpoint),
        )

    @staticmethod
    def tuned(checkpoint: os.PathLike) -> dict[str, float]:
        """Metrics of the validation of a checkpoint's weights; {} where there was none."""
        return read_manifest(checkpoint).get("metrics") or {}

    def write_result(self, result: FinetuningResult) -> None:
        """Records how the run ended."""
        write_json(self.path / RESULT, dataclasses.asdict(result))

    def result(self) -> FinetuningResult | None:
        """How the run ended; None where it has not."""
        try:
            return FinetuningResult(**json.loads((self.path / RESULT).read_bytes()))
        except (*storage.FILE_ERRORS, ValueError, TypeError):
            return None
