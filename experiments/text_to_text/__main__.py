"""Fine-tuning of T5 and BART: every task as a text whose answer is a text.

    python -m experiments.text_to_text train sst2 runs/t5-sst2 --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text evaluate runs/t5-sst2 --data-dir DIR
    echo "a fine film" | python -m experiments.text_to_text predict runs/t5-sst2
    python -m experiments.text_to_text train summarization runs/subjects --init runs/bart \\
        --data-dir DIR

`train` goes on where it was stopped when the same command is given again.
"""

import argparse
import sys

from experiments.command_line import (
    checkpoint_option,
    command_parser,
    devices,
    set_option,
    strategy_options,
    tfds_options,
)
from macaron_tf.errors import exit_on_user_error

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
each behind its name, "sst2 sentence: ...", with the class's name for an answer, or a score to the
nearest 0.2; summarization (ROUGE), by default of AESLC's e-mails to their subjects; translation
(BLEU)

--source of examples: tfds:NAME or tsv:FILE with the task's columns and `label` under a header; of
the last two pairs of texts, `experiments.translate --help` lists the forms, and the names of both
sides are --set fields="('en','de')"
"""


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.text_to_text", __doc__, _FORMS)

    train = command("train", "fine-tune on a task, or go on with an interrupted run")
    train.add_argument("task", help="name of a task")
    train.add_argument("run", help="folder of the run; made, or resumed where it exists")
    train.add_argument(
        "--init",
        metavar="RUN",
        required=True,
        help="a pre-training run of T5 or BART, or hugging-face:DIR, a folder with a T5 or BART",
    )
    train.add_argument("--source", help="of examples; the task's own by default")
    tfds_options(train)
    set_option(train, "training.max_steps=500 or max_source=512")
    strategy_options(train)

    evaluate = command("evaluate", "answer a split and score the answers")
    evaluate.add_argument("run", help="folder of the run")
    evaluate.add_argument("--source", help="of examples; the run's by default")
    evaluate.add_argument("--split", default="validation", help="its split (default: validation)")
    tfds_options(evaluate)
    checkpoint_option(evaluate)
    strategy_options(evaluate)

    predict = command("predict", "answer lines, a line out for a line in")
    predict.add_argument("run", help="folder of the run")
    predict.add_argument(
        "--input", metavar="FILE", help="texts, of two with a tab between; stdin by default"
    )
    predict.add_argument("--output", metavar="FILE", help="answers; stdout by default")
    checkpoint_option(predict)
    strategy_options(predict)
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.devices = devices(options)
    # Each command imports what it needs: `--help` answers without TensorFlow.
    match options.command:
        case "train":
            from experiments.text_to_text import train

            train.run(options)
        case "evaluate":
            from experiments.text_to_text.evaluate import evaluate

            evaluate(options)
        case "predict":
            from experiments.text_to_text.evaluate import predict

            predict(options)


if __name__ == "__main__":
    sys.exit(main())
