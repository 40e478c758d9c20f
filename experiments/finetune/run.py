"""A fine-tuning run, its outputs for texts, and their metrics."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from experiments.finetune.kinds import kind_of
from experiments.finetune.recipe import FinetuningRecipe
from experiments.row_outputs import RowOutputs
from experiments.run import Run
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.io import paths as storage
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.checkpoints import read_manifest

RESULT = "result.json"
_INPUTS = ("token_ids", "segment_ids")
# Fills up the outputs of short rows: no position of a span, no tag.
_PADDING = -1e9


@dataclasses.dataclass(frozen=True)
class FinetuningResult:
    """The end of a run; RUN/result.json.

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


@dataclasses.dataclass(eq=False)
class Predictor:
    """Outputs of a fine-tuned network, text by text or of tokenized examples; see `RowOutputs`.

    Attributes:
        tuned: metrics of the validation of these weights, see `TaskKind.outputs`.
    """

    network: keras.Model
    vocabulary: PieceVocabulary
    recipe: FinetuningRecipe
    tuned: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.kind = kind_of(self.recipe.described)
        self._outputs = RowOutputs(self.network, _INPUTS, self.kind.row_shape)

    def logits(self, data: ExampleBatches) -> np.ndarray:
        """The network's outputs `(N, ...)` for N tokenized rows, at the longest row's length."""
        ids = keras.KerasTensor((len(data), *self.kind.row_shape, data.lengths[-1]), "int32")
        shape = self.network.compute_output_spec(dict.fromkeys(_INPUTS, ids)).shape
        batches = data.evaluation_dataset().as_numpy_iterator()
        inputs = ((batch["index"], tuple(map(batch.get, _INPUTS))) for batch in batches)
        return self._outputs.fill(np.full(shape, _PADDING, np.float32), inputs)

    def of_examples(self, examples: Any) -> Any:
        """The kind's outputs of a task's examples, whose labels are not used."""
        encoded = self.kind.encode(self.vocabulary, examples, self.recipe.limits)
        data = ExampleBatches(encoded, self.recipe.batch_size)
        return self.outputs(data, examples, self.logits(data))

    def outputs(self, data: ExampleBatches, examples: Any, logits: np.ndarray) -> Any:
        """The kind's outputs of examples, from the logits of their rows."""
        return self.kind.outputs(logits, data.encoded, examples, self.recipe.limits, self.tuned)

    def of_texts(self, *columns: Sequence[str]) -> Any:
        """The kind's outputs of texts without labels, see `TaskKind.of_texts`."""
        return self.of_examples(self.kind.of_texts(*columns))


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Metrics of development sets: the first one's by their names, others' behind the split's."""
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }


def measure(
    task: Task, outputs: Mapping[str, Any], examples: Mapping[str, Any]
) -> dict[str, float]:
    """Metrics of outputs, both arguments by split, as `by_split` names them."""
    kind = kind_of(task)
    return by_split({split: kind.measure(outputs[split], examples[split]) for split in outputs})


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning."""

    recipe_class = FinetuningRecipe

    @property
    def task(self) -> Task:
        """The task that it was trained for."""
        return self.recipe.described

    def make_network(self) -> keras.Model:
        recipe = self.recipe
        config = recipe.model_config(self.vocabulary.size)
        policy = recipe.training.dtype_policy
        return kind_of(self.task).network(config, recipe.head_dropout, policy)

    def write(self, network: keras.Model, fingerprint: str, **counts: int) -> None:
        (self.path / RESULT).unlink(missing_ok=True)
        super().write(network, fingerprint, **counts)

    def predictor(self, checkpoint: os.PathLike | str | None = None) -> Predictor:
        """Texts to outputs with a checkpoint's weights, see `load_network`."""
        checkpoint = self.checkpoint(checkpoint)
        network = self.load_network(checkpoint)
        return Predictor(network, self.vocabulary, self.recipe, self.tuned(checkpoint))

    @staticmethod
    def tuned(checkpoint: os.PathLike) -> dict[str, float]:
        """Metrics of the validation of a checkpoint's weights; {} where there was none."""
        return read_manifest(checkpoint).get("metrics") or {}

    def result(self) -> FinetuningResult | None:
        """The end of the run; None where it has not come."""
        try:
            return FinetuningResult(**json.loads((self.path / RESULT).read_bytes()))
        except (*storage.FILE_ERRORS, ValueError, TypeError):
            return None
