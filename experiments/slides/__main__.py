"""The systems of the slides beside each other, at one small size and as many tokens.

    python -m experiments.slides encoders study --data-dir DIR
    python -m experiments.slides decoders study --data-dir DIR

encoders: BERT, RoBERTa, ALBERT, SpanBERT, XLM, ELECTRA, gMLP and aMLP: what each learns, and how it
does when it is fine-tuned; three seeds where the slides compare two ways: the order of sentences
or next sentences or neither, static or dynamic masks, replaced or masked tokens. Sentence-BERT is
BERT's, trained on STS-B, beside the mean pooling of each encoder as it is.
decoders: GPT, GPT-2, Transformer-XL, XLNet, T5 and BART with Transformer's, Macaron's and
SwishRNN's blocks of as many weights; GPT and T5 with three seeds. Transformer-XL also with shorter
and longer memories, GPT-2 asked tasks without training, ELMo and a tagger with and without it.

Writes OUT/NAME.md, .json and .png. What is complete is not trained again: an interrupted command
goes on when it is given again.
"""

import argparse
import importlib
import sys

from macaron_tf.errors import UserError, exit_on_user_error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.slides",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    encoders = commands.add_parser("encoders", help="the encoders: about three hours on two cores")
    _options(encoders)
    add = encoders.add_argument
    add(
        "--tasks",
        nargs="+",
        default=["sst2", "stsb", "conll2003"],
        help="default sst2 stsb conll2003",
    )
    add(
        "--sentences",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also score sentences' vectors on STS-B, as they are and, of BERT, trained",
    )
    add("--source", help="examples of the one task, such as tsv:FILE")
    _settings_option(encoders, "--finetune-set", "every fine-tuning")
    decoders = commands.add_parser("decoders", help="the others: about three hours on two cores")
    _options(decoders)
    decoders.add_argument(
        "--report",
        action="store_true",
        help="only write the tables of what is complete: a look at a study that goes on",
    )
    decoders.add_argument("--source", help="tagged sentences for ELMo, such as conll:FILE")
    _settings_option(decoders, "--elmo-set", "ELMo")
    return parser


def _options(parser: argparse.ArgumentParser) -> None:
    """Those of every study."""
    add = parser.add_argument
    add("out", help="folder of corpora, runs and results")
    add("--data-dir", metavar="DIR", help="TensorFlow Datasets' folder")
    add("--systems", nargs="+", metavar="NAME", help="rows of the table (default: all)")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="default 1 2 3")
    add("--jobs", type=int, default=2, metavar="N", help="trainings at once (default %(default)s)")
    _settings_option(parser, "--set", "every pre-training")


def _settings_option(parser: argparse.ArgumentParser, flag: str, what: str) -> None:
    parser.add_argument(
        flag,
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help=f"a setting of {what}, such as training.max_steps=500",
    )


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.arguments = list(arguments or sys.argv[1:])
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: give 1 or more")
    # Each command imports what it needs: `--help` answers without TensorFlow.
    importlib.import_module(f"experiments.slides.{options.command}").run(options)


if __name__ == "__main__":
    sys.exit(main())
