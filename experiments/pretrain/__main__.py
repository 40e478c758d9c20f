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
    count_option,
    devices,
    recipe_options,
    recipes_command,
    run_option,
    run_to_train,
    source_forms,
    strategy_options,
    vocabulary_option,
)
from macaron_tf.data.sources.names import DOCUMENTS
from macaron_tf.errors import exit_on_user_error

_SETTINGS = "training.max_steps=500 or corpus.sequence_length=256"
_FORMS = f"""sources of text, in corpus.sources:
{source_forms(DOCUMENTS)}
or (NAME, SPLIT, WEIGHT, LANGUAGE): with a LANGUAGE of two, ("en", "de"), translation pairs, from
tfds:NAME, text:FILE,FILE, tsv:FILE or homeassistant:LANG
"""


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.pretrain", __doc__, _FORMS)

    vocabulary = command("vocabulary", "train a recipe's vocabulary alone")
    recipe_options(vocabulary, _SETTINGS)
    vocabulary.add_argument("out", help="folder of the vocabulary")

    prepare = command("prepare", "write a recipe's corpus as shards of tokenized rows")
    recipe_options(prepare, _SETTINGS)
    prepare.add_argument("corpus", help="folder of the corpus; made, or continued where it exists")
    vocabulary_option(prepare)

    train = command("train", "pre-train a recipe, or go on with an interrupted run")
    recipe_options(train, _SETTINGS)
    run_to_train(train)
    train.add_argument(
        "--corpus",
        metavar="DIR",
        help="a folder of `prepare`; by default the recipe's own is prepared in the cache",
    )
    vocabulary_option(train)
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
    evaluate.add_argument("--corpus", metavar="DIR", required=True, help="a folder of `prepare`")
    evaluate.add_argument(
        "--output", metavar="FILE", help="JSON of the scores; in RUN/scores by default"
    )
    evaluate.add_argument(
        "--memory",
        type=int,
        nargs="+",
        metavar="M",
        help="earlier positions that a run with a memory attends to; several are compared "
        "(default: the training's)",
    )
    evaluate.add_argument(
        "--clamp", type=int, metavar="N", help="greater distances count as N (with a memory)"
    )
    strategy_options(evaluate)

    fill = command("fill", "the likeliest words for each [MASK] of a text")
    run_option(fill)
    fill.add_argument("text", nargs="*", help="texts with [MASK]; lines of stdin by default")
    count_option(fill, "--top", "words for each [MASK] (default 5)", default=5)

    recipes_command(command)
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
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
