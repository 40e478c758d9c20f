"""What a fine-tuning is judged by while it trains."""

import numpy as np
import tensorflow as tf

from experiments.finetuning.prediction import Predictor, measure
from macaron_tf.data.classification_data import ClassificationData
from macaron_tf.data.task_data import Examples
from macaron_tf.data.tasks import Task
from macaron_tf.objectives import ClassificationObjective
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
        examples: the same, with labels and groups.
    """

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        data: dict[str, ClassificationData],
        examples: dict[str, Examples],
    ):
        self.task = task
        self.predictor = predictor
        self.data = data
        self.examples = examples
        self.objective = ClassificationObjective(task.num_classes)

    def __call__(self, model: FitModel, step: int) -> dict[str, float]:
        """The metrics, as `train` asks of a validation."""
        outputs = {split: self.predictor.outputs(data) for split, data in self.data.items()}
        first = next(iter(outputs))
        loss = self._loss(outputs[first], self.examples[first].labels)
        return {"loss": loss, **measure(self.task, outputs, self.examples)}

    def _loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        batch = {
            "token_ids": tf.ones((len(labels), 1), tf.int32),
            "label": tf.constant(labels),
            "weight": tf.ones(len(labels)),
        }
        # The outputs are there already: a network that returns them.
        sums = self.objective(lambda inputs, training: tf.constant(outputs), batch, training=False)
        return float(sums["loss_sum"] / sums["weight"])
