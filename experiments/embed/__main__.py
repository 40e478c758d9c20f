"""Sentence-BERT: vectors of sentences whose cosine says how alike they are.

    python -m experiments.embed train stsb runs/sts --init runs/bert --data-dir DIR
    python -m experiments.embed evaluate runs/sts --data-dir DIR
    python -m experiments.embed evaluate hugging-face:DIR --task stsb --data-dir DIR
    python -m experiments.embed encode runs/sts --input lines.txt --output vectors.npy
    python -m experiments.embed search runs/sts --corpus lines.txt --query "a man sleeps"

`train` goes on where it was stopped when the same command is given again. Without --query, `search`
answers stdin line by line.
"""

import argparse
import sys

from experiments.command_line import (
    command_parser,
    devices,
    init_options,
    lower_case_option,
    set_option,
    strategy_options,
    tfds_options,
)
from macaron_tf.errors import exit_on_user_error

_FORMS = """tasks, and what they are learnt by:
  stsb                        --objective cosine: the cosine is to be the score, scaled to [0, 1]
  mrpc qqp mnli qnli rte wnli boolq
                              --objective softmax: the pair's class from u, v and |u-v|
                              (--set "concatenation=u,v,u*v" and so on)
  triplets                    --objective triplet: --source tsv:FILE with the columns anchor,
                              positive and negative; {split} in the name becomes train, validation

ENCODER and FROM:
  RUN[@CHECKPOINT]   a run of `train`, or of pre-training or fine-tuning, whose vectors are averaged
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM-R, ALBERT or ELECTRA
  keras-hub:DIR      a BERT preset's folder
  none               (FROM alone) weights drawn at random; with --model NAME and --vocabulary DIR
"""


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.embed", __doc__, _FORMS)

    train = command("train", "train an encoder of sentences, or go on with an interrupted run")
    train.add_argument("task", help="what to learn from: stsb, mnli, ..., or triplets")
    train.add_argument("run", help="folder of the run; made, or resumed where it exists")
    train.add_argument("--init", required=True, metavar="FROM", help="what to start with")
    train.add_argument(
        "--objective",
        choices=("softmax", "cosine", "triplet"),
        help="what to learn by; the one that fits the task by default",
    )
    _pooling_option(train)
    init_options(train)
    _source_options(train)
    set_option(train, "epochs=2, training.seed=2, batch_size=32 or model.dropout=0")
    strategy_options(train)

    evaluate = command("evaluate", "Spearman and Pearson of the cosine against people's scores")
    _encoder_options(evaluate)
    evaluate.add_argument("--task", help="the run's own by default, else stsb")
    evaluate.add_argument("--split", help="the development set by default, of a file all")
    evaluate.add_argument(
        "--output", metavar="DIR", help="where the metrics go; RUN/scores by default"
    )
    _source_options(evaluate)
    strategy_options(evaluate)

    encode = command("encode", "lines to an array of vectors, one for each line, in order")
    _encoder_options(encode)
    encode.add_argument("--input", metavar="FILE", help="a sentence a line; stdin by default")
    encode.add_argument(
        "--output", required=True, metavar="FILE", help=".npy: (lines, D) float32, by numpy.load"
    )
    encode.add_argument("--unit", action="store_true", help="scale each vector to length 1")
    strategy_options(encode)

    search = command("search", "the lines of a file nearest to a query, by the cosine, exactly")
    _encoder_options(search)
    search.add_argument(
        "--corpus",
        required=True,
        metavar="FILE",
        help="a sentence a line; its vectors are kept beside it, in FILE.HASH.npy",
    )
    search.add_argument(
        "--query", action="append", metavar="TEXT", help="as often as wanted; stdin by default"
    )
    search.add_argument(
        "--top", type=int, default=10, metavar="N", help="answers a query (default %(default)s)"
    )
    strategy_options(search)
    return parser


def _encoder_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="ENCODER", help="what makes the vectors")
    _pooling_option(parser)
    parser.add_argument(
        "--max-length", type=int, metavar="N", help="longest row; the encoder's own by default"
    )
    lower_case_option(parser)


def _pooling_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pooling",
        choices=("mean", "max", "cls"),
        help="a sentence's vector from its tokens'; the encoder's own by default, or else mean",
    )


def _source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="examples, tfds:NAME or tsv:FILE; the task's own if not")
    tfds_options(parser)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.devices = devices(options)
    # Each command imports what it needs: `--help` answers without TensorFlow.
    match options.command:
        case "train":
            from experiments.embed import train

            train.run(options)
        case "evaluate":
            from experiments.embed import evaluate

            evaluate.run(options)
        case "encode":
            from experiments.embed.encode import encode

            encode(options)
        case "search":
            from experiments.embed.encode import search

            search(options)


if __name__ == "__main__":
    sys.exit(main())
