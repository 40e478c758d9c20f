"""`finetune tasks`: what can be fine-tuned on."""

import argparse

from macaron_tf.data.tasks import TASKS


def run(options: argparse.Namespace) -> None:
    """Prints each task's columns, classes and metrics."""
    print(f"{'task':8} {'columns of a table, with `label`':38} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.second))
        low, high = task.score_range or (None, None)
        classes = " ".join(task.labels) or f"a number from {low:g} to {high:g}"
        print(f"{task.name:8} {columns:38} {classes:40} {' '.join(task.metrics)}")
