"""`translate average`: one set of weights from the last checkpoints."""

import argparse

from experiments.run import TranslationRun
from macaron_tf.errors import UserError
from macaron_tf.training.averaging import average_checkpoints, last_checkpoints


def run(options: argparse.Namespace) -> None:
    """Averages into RUN/average and prints which checkpoints went in."""
    opened = TranslationRun.open(options.run)
    count = options.last if options.last is not None else opened.recipe.average_last
    if count < 1:
        raise UserError(f"--last {count}: give a whole number of 1 or more")
    chosen = last_checkpoints(opened.path, count)
    average = average_checkpoints(chosen, opened.path / "average")
    print(f"averaged {', '.join(checkpoint.name for checkpoint in chosen)} into {average}")
