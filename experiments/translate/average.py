"""`translate average`: one set of weights from the last checkpoints."""

import argparse
import pathlib

from experiments.translate.run import TranslationRun
from macaron_tf.errors import UserError
from macaron_tf.training.checkpoints import average_checkpoints, last_checkpoints


def run(options: argparse.Namespace) -> None:
    """Averages into RUN/average and prints which checkpoints went in."""
    opened = TranslationRun.open(options.run)
    count = options.last if options.last is not None else opened.recipe.average_last
    if count < 1:
        raise UserError(f"--last {count}: give a whole number of 1 or more")
    average_run(opened, count)


def average_run(opened: TranslationRun, count: int) -> pathlib.Path:
    """Averages a run's last `count` regular checkpoints into RUN/average, and says so.

    Raises:
        UserError: there are fewer.
    """
    every = opened.recipe.training.save_every_steps
    chosen = last_checkpoints(opened.path, count, every)
    average = average_checkpoints(chosen, opened.path / "average")
    print(f"averaged {', '.join(checkpoint.name for checkpoint in chosen)} into {average}")
    return average
