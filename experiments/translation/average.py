"""`translate average`: one set of weights from the last checkpoints."""

import argparse

from experiments.run import TranslationRun
from macaron_tf.errors import UserError
from macaron_tf.training.averaging import average_last


def run(options: argparse.Namespace) -> None:
    """Averages into RUN/average and prints which checkpoints went in."""
    opened = TranslationRun.open(options.run)
    count = options.last if options.last is not None else opened.recipe.average_last
    if count < 1:
        raise UserError(f"--last {count}: give a whole number of 1 or more")
    steps = average_last(opened.path, count, opened.path / "average")
    print(f"averaged steps {', '.join(map(str, steps))} into {opened.path / 'average'}")
