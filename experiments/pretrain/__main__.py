"""Pre-training an encoder from the first command to a model to fine-tune.

    python -m experiments.pretrain train bert_tiny runs/bert --data-dir DIR
    python -m experiments.pretrain fill runs/bert "the [MASK] of the story"

or, the corpus prepared once and shared by several runs:

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.pretrain train swish_rnn_tiny runs/swish --corpus corpora/mini
    python -m experiments.pretrain evaluate runs/swish --corpus corpora/mini

`prepare` and `train` go on where they were interrupted when the same command is given again.
"""

import argparse
import sys

from experiments.command_line import (
    command_parser,
    devices,
    recipes_command,
    run_option,
    set_option,
    strategy_options,
    tfds_options,
)
from macaron_tf.errors import UserError, exit_on_user_error

# The lines of macaron_tf.data.sources.names.DOCUMENTS, which cannot be imported without TensorFlow.
_FORMS = """sources of text, in corpus.sources:
  tfds:NAME[/CONFIG][:VERSION]    a TensorFlow Datasets set with a field of text
  text:GLOB[,GLOB...]             files, plain or .gz, each a document
  text-paragraphs:GLOB[,GLOB...]  files whose documents are separated by blank lines
  text-lines:GLOB[,GLOB...]       files with a document a line
  homeassistant:LANG              the embedded default corpus, a part of the program a document
or (NAME, SPLIT, WEIGHT, LANGUAGE): with a LANGUAGE of two, ("en", "de"), translation pairs, from
tfds:NAME, text:FILE,FILE, tsv:FILE or homeassistant:LANG
"""


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.pretrain", __doc__, _FORMS)

    vocabulary = command("vocabulary", "train a recipe's vocabulary alone")
    vocabulary.add_argument("recipe", help="name of a recipe; `recipes` lists them")
    vocabulary.add_argument("out", help="folder of the vocabulary")
    _data_options(vocabulary)

    prepare = command("prepare", "write a recipe's corpus as shards of tokenized rows")
    prepare.add_argument("recipe", help="name of a recipe")
    prepare.add_argument("corpus", help="folder of the corpus; made, or gone on with")
    _data_options(prepare)
    _vocabulary_option(prepare)

    train = command("train", "pre-train a recipe, or go on with an interrupted run")
    train.add_argument("recipe", help="name of a recipe")
    train.add_argument("run", help="folder of the run; made, or resumed where it exists")
    train.add_argument(
        "--corpus",
        metavar="DIR",
        help="what `prepare` wrote; by default the recipe's own is prepared in the cache",
    )
    _data_options(train)
    _vocabulary_option(train)
    train.add_argument(
        "--data-service",
        metavar="HOST:PORT",
        help="have the batches made by `python -m experiments.data_service` elsewhere; several, "
        "with commas, are dealt to the workers",
    )
    train.add_argument(
        "--own-shards",
        action="store_true",
        help="each worker reads its own shards of the corpus only; by default it reads all and "
        "takes its rows of each batch, so that any number of workers makes the same run",
    )
    strategy_options(train)

    evaluate = command("evaluate", "loss and accuracy on a corpus's validation rows")
    run_option(evaluate)
    evaluate.add_argument("--corpus", metavar="DIR", required=True, help="what `prepare` wrote")
    evaluate.add_argument(
        "--output", metavar="FILE", help="JSON of the scores; in RUN/scores by default"
    )
    evaluate.add_argument(
        "--memory",
        type=int,
        nargs="+",
        metavar="M",
        help="positions that a run with a memory looks back on; several are compared (default: as "
        "in training)",
    )
    evaluate.add_argument(
        "--clamp", type=int, metavar="N", help="greater distances count as N (with a memory)"
    )
    strategy_options(evaluate)

    fill = command("fill", "the likeliest words for each [MASK] of a text")
    run_option(fill)
    fill.add_argument("text", nargs="*", help="texts with [MASK]; lines of stdin by default")
    fill.add_argument("--top", type=int, default=5, metavar="N", help="words each (default 5)")

    recipes_command(command)
    return parser


def _data_options(parser: argparse.ArgumentParser) -> None:
    tfds_options(parser)
    set_option(parser, "training.max_steps=500 or corpus.sequence_length=256")


def _vocabulary_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary", metavar="DIR", help="use this vocabulary instead of training one"
    )


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    if getattr(options, "top", 1) < 1:
        raise UserError(f"--top {options.top}: give a whole number of 1 or more")
    options.devices = devices(options)
    # Each command imports its own module: `--help` answers without TensorFlow.
    match options.command:
        case "vocabulary":
            from experiments.pretrain.corpus import run_vocabulary as run
        case "prepare":
            from experiments.pretrain.corpus import run_prepare as run
        case "train":
            from experiments.pretrain.train import run
        case "evaluate":
            from experiments.pretrain.evaluate import run
        case "fill":
            from experiments.pretrain.fill import run
        case "recipes":
            from experiments.pretrain.recipe import PretrainingRecipe
            from experiments.registry import show

            return show(PretrainingRecipe, options.name)
    run(options)


if __name__ == "__main__":
    sys.exit(main())
