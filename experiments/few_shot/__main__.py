"""Zero-, one- and few-shot evaluation of language models, without a gradient update.

    python -m experiments.few_shot runs/gpt2 --task sst2 rte --shots 0 1 4 16 --seeds 1 2 3 \\
        --data-dir DIR --out scores
    python -m experiments.few_shot runs/gpt2 --task lambada:dev.txt.gz --shots 0 --out scores
    python -m experiments.few_shot runs/small runs/large --task sst2 --calibrate \\
        --data-dir DIR --out scores

Brown et al. 2020 (GPT-3): K examples and a question in words, and the model's answer. The table
(OUT/few_shot.md) has chance and the majority class beside the scores; few_shot.png draws them
against K, sizes.png, of several models, against their size.
"""

import argparse
import sys

from experiments.command_line import tfds_options
from macaron_tf.errors import UserError, exit_on_user_error

_FORMS = """tasks:
  cola sst2 mrpc qqp mnli qnli rte wnli boolq multirc   classes by their words, --words
  squad          answers in free form: F1 and exact match
  lambada:FILE   a passage a line, plain or .gz: its last word
  tsv:FILE       columns question and answer, and of a choice choice1, choice2 ... with the number
                 of the right one as answer
Files with {split} in their names have train, for the examples, and validation; of others every
fourth line is for the examples.

RUN is a run of `python -m experiments.pretrain` with the objective causal_language, RUN@CHECKPOINT
one of its checkpoints; or hugging-face:DIR, a folder with a GPT-2. Examples and question have to
fit into a row of the training: the table says how many did.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.few_shot",
        description=__doc__,
        epilog=_FORMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="RUN, RUN@CHECKPOINT or hugging-face:DIR"
    )
    parser.add_argument("--task", nargs="+", required=True, metavar="TASK", help="see below")
    parser.add_argument(
        "--shots", type=int, nargs="+", default=[0, 1, 4, 16], metavar="K", help="examples shown"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="of which are shown"
    )
    parser.add_argument(
        "--normalization",
        choices=("token", "sum"),
        default="token",
        help="log-likelihood of an answer a token, or as it is (default token)",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="divide by what the answers have after queries about nothing (Zhao et al. 2021)",
    )
    parser.add_argument(
        "--template",
        metavar="TEXT",
        help="how a task of classes is asked, with {first} and {second} and \\n for a line's end; "
        "goes with --words",
    )
    parser.add_argument("--words", nargs="+", metavar="WORD", help="a word for each class, in turn")
    parser.add_argument(
        "--max-examples", type=int, default=1_000, metavar="N", help="questions at most"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of table and figures")
    tfds_options(parser)
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    options = _parser().parse_args(arguments)
    if min(options.shots) < 0:
        raise UserError(f"--shots {min(options.shots)}: give 0 or more")
    if options.max_examples < 1:
        raise UserError(f"--max-examples {options.max_examples}: give 1 or more")
    # `--help` answers without TensorFlow.
    from experiments.few_shot.evaluate import run

    run(options)


if __name__ == "__main__":
    sys.exit(main())
