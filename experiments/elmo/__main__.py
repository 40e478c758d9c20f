"""ELMo: a language model in both directions, and the F1 that its vectors add to a tagger.

    python -m experiments.elmo train elmo_tiny runs/elmo --data-dir DIR
    python -m experiments.elmo evaluate runs/elmo --data-dir DIR
    python -m experiments.elmo embed runs/elmo --input lines.txt --output vectors.npz
    python -m experiments.elmo tag runs/elmo runs/elmo-conll --data-dir DIR

`train` and `tag` go on where they were interrupted when the same command is given again. `tag`
trains a tagger of CoNLL-2003's entities with the vectors and one without, and prints both F1.
"""

import argparse
import sys

from experiments.command_line import (
    command_parser,
    count_option,
    devices,
    recipe_options,
    recipes_command,
    run_option,
    run_to_train,
    strategy_options,
    tfds_options,
)
from macaron_tf.errors import exit_on_user_error


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.elmo", __doc__, "")

    train = command("train", "train a recipe, or go on with an interrupted run")
    recipe_options(train, "training.max_steps=500 or sources=text:books/*.gz")
    run_to_train(train)
    strategy_options(train)

    evaluate = command("evaluate", "perplexity on the documents that the run held out")
    run_option(evaluate)
    tfds_options(evaluate)

    embed = command("embed", "the vectors of the words of some lines, as an .npz")
    run_option(embed)
    embed.add_argument("--input", metavar="FILE", help="a sentence a line; stdin by default")
    embed.add_argument("--output", metavar="FILE", required=True, help="the .npz to write")
    embed.add_argument(
        "--layers",
        choices=("all", "mean", "top"),
        default="all",
        help="all layers of each word (default), their mean, or the last one",
    )
    embed.add_argument(
        "--tokenized",
        action="store_true",
        help="words are separated by spaces already",
    )

    tag = command("tag", "a tagger of entities with the vectors, and one without")
    run_option(tag)
    tag.add_argument("out", help="folder of runs and results")
    tag.add_argument("--source", help="tfds:NAME or conll:FILE; conll2003_ner by default")
    tag.add_argument("--split", default="dev", help="the split to score on (default dev)")
    count_option(tag, "--epochs", "passes over the sentences (default 8)", default=8)
    tag.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="default 1")
    tfds_options(tag)

    recipes_command(command)
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.arguments = list(arguments or sys.argv[1:])
    options.devices = devices(options)
    # Each command imports its own module: `--help` answers without TensorFlow.
    match options.command:
        case "train":
            from experiments.elmo.train import run
        case "evaluate":
            from experiments.elmo.train import evaluate as run
        case "embed":
            from experiments.elmo.embed import run
        case "tag":
            from experiments.elmo.tag import run
        case "recipes":
            from experiments.elmo.run import ElmoRecipe
            from experiments.registry import show

            return show(ElmoRecipe, options.name)
    run(options)


if __name__ == "__main__":
    sys.exit(main())
