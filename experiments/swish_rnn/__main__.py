"""The figures and tables of the SwishRNN paper (Lei et al. 2022), at any scale.

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.swish_rnn curves study/curves --corpus corpora/mini
    python -m experiments.swish_rnn step-sizes study/steps --corpus corpora/mini --data-dir DIR
    python -m experiments.swish_rnn stability study/stability --data-dir DIR \\
        --init study/curves/bert_rab_tiny-1 study/curves/swish_rnn_tiny-1

curves: figure 4, the masked language loss against the step, of several recipes.
stability: figure 3, the fine-tuned score against the learning rate, of several models.
step-sizes: table 2, scores and time by the step size of the recurrence.

Each writes OUT/NAME.md, .json and .png, means over seeds with their deviation. Runs that are
complete are not trained again; an interrupted command goes on when it is given again.
"""

import argparse
import importlib
import sys

from macaron_tf.errors import exit_on_user_error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.swish_rnn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    curves = commands.add_parser("curves", help="figure 4: loss against step")
    _pretraining_options(curves)
    curves.add_argument(
        "--recipes",
        nargs="+",
        metavar="RECIPE",
        default=["bert_tiny", "bert_rab_tiny", "swish_rnn_tiny", "macaron_bert_tiny"],
        help="what is compared (default: the four of size tiny)",
    )

    sizes = commands.add_parser("step-sizes", help="table 2: scores and time by step size")
    _pretraining_options(sizes)
    sizes.add_argument("--recipe", default="swish_rnn_tiny", help="default %(default)s")
    sizes.add_argument(
        "--reference", default="bert_rab_tiny", help="whose time counts as 1 (%(default)s)"
    )
    sizes.add_argument(
        "--sizes",
        nargs="+",
        default=["1", "2", "1,2,4"],
        metavar="K[,K...]",
        help="step sizes, layer by layer in turn (default 1, 2 and 1,2,4)",
    )
    _finetuning_options(sizes)

    stability = commands.add_parser("stability", help="figure 3: score against learning rate")
    stability.add_argument("out", help="folder of the runs and of the figure")
    stability.add_argument(
        "--init", nargs="+", required=True, metavar="[NAME=]FROM", help="models, as for finetune"
    )
    stability.add_argument(
        "--learning-rates",
        nargs="+",
        type=float,
        default=[1e-5, 3e-5, 1e-4, 3e-4, 1e-3],
        metavar="R",
        help="default: 1e-5 to 1e-3",
    )
    _seeds_option(stability)
    _finetuning_options(stability)
    return parser


def _pretraining_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", help="folder of the runs and of the result")
    parser.add_argument(
        "--corpus", required=True, metavar="DIR", help="what `pretrain prepare` wrote"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a setting of every pre-training, such as training.max_steps=500",
    )
    _seeds_option(parser)


def _seeds_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="default 1 2 3"
    )


def _finetuning_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks", nargs="+", default=["cola", "rte", "stsb"], help="default cola rte stsb"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="TensorFlow Datasets' folder")
    parser.add_argument("--source", help="examples of the one task, such as tsv:FILE")
    parser.add_argument(
        "--finetune-set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a setting of every fine-tuning, such as epochs=1",
    )


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.arguments = list(arguments or sys.argv[1:])
    # Each command imports what it needs: `--help` answers without TensorFlow.
    module = options.command.replace("-", "_")
    importlib.import_module(f"experiments.swish_rnn.{module}").run(options)


if __name__ == "__main__":
    sys.exit(main())
