"""`finetune baseline`: what can be had without a network."""

import argparse
import json

from experiments.finetune.data import TRAIN, TaskData
from experiments.finetune.kinds import kind_of
from experiments.finetune.prediction import by_split
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.errors import UserError
from macaron_tf.io.paths import write_aside


def run(options: argparse.Namespace) -> None:
    """Fits, scores and prints."""
    task = get_task(options.task)
    data = TaskData.read(task, options.source, options.data_dir, options.download)
    metrics = score_baseline(data)
    if metrics is None:
        raise UserError(
            f"there is no baseline for {task.name}: give a task of classes, scores or tags"
        )
    print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    if options.output:
        record = {"task": task.name, "source": options.source or task.source, **metrics}
        write_aside(options.output, (json.dumps(record, indent=1) + "\n").encode())


def score_baseline(data: TaskData) -> dict[str, float] | None:
    """Metrics of the kind's baseline.

    Args:
        data: what is learnt from, and the development sets.

    Returns:
        As `experiments.finetune.prediction.measure`; None where there is no baseline.

    Raises:
        UserError: see `TaskKind.baseline`.
    """
    kind = kind_of(data.task)
    predict = kind.baseline(data.splits[TRAIN])
    if predict is None:
        return None
    return by_split(
        {
            split: kind.score(predict(examples), examples)
            for split, examples in data.validation.items()
        }
    )
