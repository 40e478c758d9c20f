"""`finetune tasks`: what can be fine-tuned on."""

import argparse

from experiments.finetune.kinds import kind_of
from macaron_tf.data.tasks.definitions import TASKS


def run(options: argparse.Namespace) -> None:
    """Prints each task's columns, classes and metrics."""
    print(f"{'task':9} {'columns of a table, with `label`':38} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.second))
        print(f"{task.name:9} {columns:38} {kind_of(task).answer:40} {' '.join(task.metrics)}")
