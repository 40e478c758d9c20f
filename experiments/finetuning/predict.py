"""`finetune predict`: lines in, labels and probabilities out, in order."""

import argparse

import numpy as np

from experiments.finetuning.prediction import probabilities
from experiments.finetuning.run import FinetuningRun
from experiments.lines import arriving, decoded, opened_input, opened_output
from macaron_tf.data.tasks import Task
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide


def run(options: argparse.Namespace) -> None:
    """Classifies a file or stdin to a file or stdout."""
    opened = FinetuningRun.open(options.run)
    with opened_input(options.input) as lines, opened_output(options.output) as out:
        predictor = opened.predictor(options.checkpoint)
        number = 1
        for chunk in arriving(decoded(lines)):
            outputs = predictor.of_texts(*_columns(opened.task, chunk, number))
            number += len(chunk)
            out.write(formatted(opened.task, outputs).encode())
            out.flush()


def _columns(task: Task, lines: list[str], first: int) -> tuple[list[str], list[str] | None]:
    if not task.second:
        return lines, None
    pairs = [line.split("\t") for line in lines]
    for number, pair in enumerate(pairs, first):
        if len(pair) != 2:
            raise UserError(
                f"line {number}: {len(pair)} columns, not 2: {task.name} is about two texts, "
                "separate them by one tab"
            )
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def formatted(task: Task, outputs: np.ndarray) -> str:
    """A line an example: the label and each class's probability, or the score.

    Args:
        task: names the classes.
        outputs: logits `(N, C)`, or scores `(N, 1)`.
    """
    decided = decide(task, outputs)
    if task.regression:
        return "".join(f"{score:.4f}\n" for score in decided)
    return "".join(
        "\t".join([task.labels[label], *(f"{part:.4f}" for part in row)]) + "\n"
        for label, row in zip(decided, probabilities(outputs), strict=True)
    )
