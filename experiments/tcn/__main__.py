"""The temporal convolutional network on the slides' tasks, beside LSTM, GRU and RNN of its size.

    python -m experiments.tcn jsb out/jsb --data music/JSB_Chorales.mat
    python -m experiments.tcn nottingham out/nottingham --data music/Nottingham.mat
    python -m experiments.tcn adding out/adding
    python -m experiments.tcn copy_memory out/copy
    python -m experiments.tcn ptb_words out/words --data ptb
    python -m experiments.tcn ptb_characters out/characters --data ptb
    python -m experiments.tcn mnist out/mnist --data-dir DIR
    python -m experiments.tcn permuted_mnist out/permuted --data-dir DIR

The recurrent models are Keras's own layers, one of them with as many parameters as the TCN. Writes
OUT/TASK.md, .json and .png, and a run's folder for each model and seed. Complete runs are not
trained again: an interrupted command goes on when it is given again. The settings are those of
`tcn_TASK` in experiments/recipes/tcn.py.
"""

import argparse
import sys

from experiments.command_line import set_option, tfds_options
from macaron_tf.errors import exit_on_user_error

# The keys of experiments.tcn.tasks.TASKS, which cannot be imported without TensorFlow.
_TASKS = (
    "adding",
    "copy_memory",
    "jsb",
    "nottingham",
    "ptb_words",
    "ptb_characters",
    "mnist",
    "permuted_mnist",
)
_MODELS = ("tcn", "lstm", "gru", "rnn")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.tcn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("task", choices=_TASKS, metavar="TASK", help=", ".join(_TASKS))
    add("out", help="folder of runs and results")
    add(
        "--data",
        metavar="PATH",
        help="the .mat file of music, the folder of ptb's texts",
    )
    add("--models", nargs="+", choices=_MODELS, default=list(_MODELS), help="default: all four")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="default 1")
    tfds_options(parser)
    set_option(parser, "training.max_steps=500 or batch_size=8, of all the models")
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs the command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.arguments = list(arguments or sys.argv[1:])
    from experiments.tcn.train import run  # here: `--help` answers without TensorFlow

    run(options)


if __name__ == "__main__":
    sys.exit(main())
