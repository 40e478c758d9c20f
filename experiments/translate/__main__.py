"""Translation from the first command to scores.

    python -m experiments.translate train multi30k_macaron_tiny runs/m30k --data-dir DIR
    python -m experiments.translate average runs/m30k
    python -m experiments.translate evaluate runs/m30k --checkpoint average
    echo "A man is riding a bike." | python -m experiments.translate translate runs/m30k

    python -m experiments.translate train multi30k_xlm_tiny runs/x --init runs/xlm --data-dir DIR
    python -m experiments.translate train multi30k_bart_tiny runs/b --init runs/bart --data-dir DIR

`train` resumes where an interrupted run stopped when the same command is given again.
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
    source_forms,
    strategy_options,
    tfds_options,
    vocabulary_option,
)
from macaron_tf.data.sources.names import PAIRS
from macaron_tf.errors import exit_on_user_error

_SETTINGS = "training.max_steps=500 or data.source=tsv:pairs.tsv"


def _parser() -> argparse.ArgumentParser:
    forms = "sources of text:\n" + source_forms(PAIRS)
    parser, command = command_parser("python -m experiments.translate", __doc__, forms)

    train = command("train", "train a recipe, or go on with an interrupted run")
    recipe_options(train, _SETTINGS)
    run_to_train(train)
    vocabulary_option(train)
    start = train.add_argument_group("start from pre-trained weights, with their vocabulary")
    start.add_argument(
        "--init",
        metavar="RUN",
        help="a run of an encoder or a language model, copied into both stacks; or of BART or T5, "
        "which reads the other language through a new encoder",
    )
    start.add_argument(
        "--init-parts",
        nargs="+",
        choices=("embeddings", "encoder", "decoder"),
        help="parts that get the weights (default: encoder decoder; embeddings always do)",
    )
    start.add_argument(
        "--init-decoder", metavar="RUN", help="another run of that shape, for the decoder"
    )
    strategy_options(train)

    vocabulary = command("vocabulary", "train a recipe's joint vocabulary alone")
    recipe_options(vocabulary, _SETTINGS)
    vocabulary.add_argument("out", help="folder for vocabulary.model and vocabulary.json")

    average = command("average", "average the newest checkpoints of a run into RUN/average")
    average.add_argument("run", help="folder of the run")
    count_option(average, "--last", "number of checkpoints; the recipe's by default")

    evaluate = command("evaluate", "translate a test set and score it")
    _run_options(evaluate)
    tfds_options(evaluate)
    evaluate.add_argument("--source", help="text to translate; the recipe's by default")
    evaluate.add_argument(
        "--split",
        help="by default the recipe's validation split; all of files without {split}",
    )
    evaluate.add_argument(
        "--source-language",
        metavar="NAME",
        help="the text's name of the source language, such as en_US; the recipe's by default",
    )
    evaluate.add_argument(
        "--target-language", metavar="NAME", help="the same of the target language"
    )
    evaluate.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="score without regard to case, or with; the recipe's by default",
    )
    evaluate.add_argument(
        "--output", metavar="DIR", help="of scores and translations; RUN/scores by default"
    )
    strategy_options(evaluate)

    compare = command("compare", "paired bootstrap between two evaluated outputs")
    compare.add_argument("first", help="a .json that `evaluate` wrote")
    compare.add_argument("second", help="another, on the same text")
    count_option(compare, "--samples", "resamplings (default 1000)", default=1000)
    count_option(compare, "--seed", "of the resamplings (default 1)", least=0, default=1)

    translate = command("translate", "translate lines, in order, one line out for one line in")
    _run_options(translate)
    translate.add_argument("--input", metavar="FILE", help="lines to translate; stdin by default")
    translate.add_argument("--output", metavar="FILE", help="translations; stdout by default")
    translate.add_argument(
        "--n-best", type=int, default=1, metavar="N", help="print N a line, with scores, in TSV"
    )

    sampling = translate.add_argument_group("sampling, instead of beam search")
    sampling.add_argument(
        "--temperature", type=float, metavar="T", help="draw at this temperature; 0 is greedy"
    )
    sampling.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K likeliest")
    sampling.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="of the likeliest that make up P"
    )
    sampling.add_argument("--seed", type=int, default=1, help="same seed, same draws (default 1)")

    strategy_options(translate)

    recipes_command(command)
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    names = "average, best, last or a step's number (default: average where made, else best)"
    run_option(parser, names)
    count_option(parser, "--beam-size", "hypotheses; the recipe's by default", metavar="K")


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.devices = devices(options)
    # Each command imports its own module: `--help` answers without TensorFlow.
    match options.command:
        case "train":
            from experiments.translate.train import run
        case "vocabulary":
            from experiments.translate.train import run_vocabulary as run
        case "average":
            from experiments.translate.evaluate import run_average as run
        case "evaluate":
            from experiments.translate.evaluate import run
        case "compare":
            from experiments.translate.evaluate import run_compare as run
        case "translate":
            from experiments.translate.translate import run
        case "recipes":
            from experiments.registry import show
            from experiments.translate.recipe import TranslationRecipe

            return show(TranslationRecipe, options.name)
    run(options)


if __name__ == "__main__":
    sys.exit(main())
