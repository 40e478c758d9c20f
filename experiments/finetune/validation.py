"""What a fine-tuning is judged by while it trains."""

from typing import Any

import numpy as np
import tensorflow as tf

from experiments.finetune.prediction import Predictor, measure
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.training import FitModel


def metric_names(task: Task) -> tuple[str, ...]:
    """What a validation of a task may be judged by."""
    return ("score", *task.metrics, *task.more_metrics, "loss")


class FinetuningValidation:
    """Loss and metrics of the development sets.

    Args:
        task: the task.
        predictor: of the network that is being trained.
        data: each development set, tokenized; the first one decides.
        examples: the same, with labels.
    """

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        data: dict[str, ExampleBatches],
        examples: dict[str, Any],
    ):
        self.task = task
        self.predictor = predictor
        self.data = data
        self.examples = examples

    def __call__(self, model: FitModel, step: int) -> dict[str, float]:
        """The metrics, as `train` asks of a validation."""
        logits = {split: self.predictor.logits(data) for split, data in self.data.items()}
        first = next(iter(logits))
        outputs = {
            split: self.predictor.outputs(self.data[split], self.examples[split], found)
            for split, found in logits.items()
        }
        loss = self._loss(logits[first], self.data[first])
        return {"loss": loss, **measure(self.task, outputs, self.examples)}

    def _loss(self, logits: np.ndarray, data: ExampleBatches) -> float:
        rows = np.arange(len(data))
        batch = {
            "token_ids": tf.ones((len(data), 1), tf.int32),
            "label": tf.constant(data.labels(rows, data.lengths[-1])),
            "weight": tf.ones(len(data)),
        }
        # The outputs are there already: a network that returns them.
        sums = self.predictor.kind.objective(
            lambda inputs, training: tf.constant(logits), batch, training=False
        )
        return float(sums["loss_sum"] / sums["weight"])
