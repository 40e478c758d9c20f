"""Fine-tuning of encoders, from pre-trained weights to scores and GLUE's files.

    python -m experiments.finetune train rte runs/rte --init runs/bert --data-dir DIR
    python -m experiments.finetune evaluate runs/rte --data-dir DIR
    echo "Two men sleep.<TAB>Men sleep." | python -m experiments.finetune predict runs/rte
    python -m experiments.finetune train squad runs/squad --init runs/bert --preset bert
    echo "Who sleeps?<TAB>Two men sleep." | python -m experiments.finetune predict runs/squad
    echo "Ann Lee saw Rome ." | python -m experiments.finetune predict runs/conll2003
    python -m experiments.finetune grid cola rte stsb runs/grid --init runs/bert runs/macaron \\
        --learning-rates 5e-5 3e-5 --batch-sizes 16 32 --seeds 1 2 3 --data-dir DIR
    python -m experiments.finetune submit runs/cola runs/rte glue/ --data-dir DIR

`train` and `grid` go on where they were stopped when the same command is given again.
"""

import argparse
import sys

from experiments.command_line import (
    checkpoint_option,
    command_parser,
    devices,
    init_options,
    set_option,
    strategy_options,
    tfds_options,
)
from macaron_tf.errors import exit_on_user_error

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
squad squad2 (questions whose answer stands in a text), conll2003 (entities), story_cloze race
(choices, of a causal model; their tables are your own); `tasks` says more.

FROM, what to start with:
  RUN[@CHECKPOINT]   a pre-training run, or a fine-tuning run of another task
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM-R, ALBERT, ELECTRA or GPT-2
  keras-hub:DIR      a BERT preset's folder
  none               weights drawn at random; with --model NAME and --vocabulary DIR

sources of examples:
  tfds:NAME[/CONFIG][:VERSION]  a TensorFlow Datasets set with the task's fields, in --data-dir
  tsv:FILE                      a table of one's own: a header naming the task's columns and
                                `label`, tabs between; {split} in the name becomes train,
                                validation or test; .gz too
  squad:FILE                    questions in SQuAD's JSON, {split} as above
  conll:FILE                    a word and its tag a line, empty lines between sentences, {split}
                                train or dev

lines for `predict`:
  a text, or two with a tab between; of squad question and context, or a JSON object of both a
  line; of conll2003 the words of a sentence, spaces between; of choices the text and each choice,
  tabs between
"""

_SETTINGS = "epochs=5, training.validate_every=100 or model.dropout=0"


def _parser() -> argparse.ArgumentParser:
    parser, command = command_parser("python -m experiments.finetune", __doc__, _FORMS)

    train = command("train", "fine-tune on a task, or go on with an interrupted run")
    train.add_argument("task", help="name of a task")
    train.add_argument("run", help="folder of the run; made, or resumed where it exists")
    train.add_argument("--init", required=True, metavar="FROM", help="what to start with")
    _model_options(train)
    _data_options(train)
    set_option(train, _SETTINGS)
    strategy_options(train)

    grid = command("grid", "fine-tune every combination of settings, and write one table")
    grid.add_argument("tasks", nargs="+", metavar="task", help="names of tasks: the columns")
    grid.add_argument("out", help="folder of the runs and of grid.md and grid.json")
    grid.add_argument(
        "--init",
        required=True,
        nargs="+",
        metavar="[NAME=]FROM",
        help="what to start with: the rows; a row is called by the folder's name, or NAME",
    )
    for flag, kind, text in (
        ("--learning-rates", float, "peak learning rates"),
        ("--batch-sizes", int, "examples a batch"),
        ("--epochs", float, "passes over the training set"),
        ("--seeds", int, "seeds; the table's means and deviations are over these"),
    ):
        grid.add_argument(
            flag, type=kind, nargs="+", metavar="N", help=f"{text} (the preset's by default)"
        )
    grid.add_argument("--baseline", action="store_true", help="add a row of what `baseline` scores")
    _model_options(grid)
    _data_options(grid)
    set_option(grid, _SETTINGS)
    strategy_options(grid)

    evaluate = command("evaluate", "score a run on a development set")
    evaluate.add_argument("run", help="folder of the run")
    checkpoint_option(evaluate)
    evaluate.add_argument(
        "--split", help="split to score; the task's development sets by default, of a file all"
    )
    evaluate.add_argument(
        "--output", metavar="DIR", help="where metrics and predictions go; RUN/scores by default"
    )
    _data_options(evaluate)
    strategy_options(evaluate)

    predict = command("predict", "answer lines, in order")
    predict.add_argument("run", help="folder of the run")
    checkpoint_option(predict)
    predict.add_argument("--input", metavar="FILE", help="lines, as below; stdin by default")
    predict.add_argument(
        "--output",
        metavar="FILE",
        help="a line each: the label and each class's probability; the score; the answer, its "
        "probability and where it begins and ends; of tags a line a word; stdout by default",
    )

    submit = command("submit", "answer the test sets, in the GLUE server's files")
    submit.add_argument("runs", nargs="+", metavar="run", help="folders of runs, one for each task")
    submit.add_argument("out", help="folder for CoLA.tsv, RTE.tsv and so on")
    checkpoint_option(submit)
    tfds_options(submit)

    baseline = command(
        "baseline", "score TF-IDF and a linear model (or each word's usual tag), to compare with"
    )
    baseline.add_argument("task", help="name of a task")
    baseline.add_argument("--output", metavar="FILE", help="JSON of the metrics")
    _data_options(baseline)

    command("tasks", "list the tasks: columns, classes, metrics")
    return parser


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        default="macaron",
        metavar="NAME",
        help="macaron: 3 epochs, 5e-5 linearly to 0; bert: the same, of questions 2 at 3e-5; "
        "gpt: 6.25e-5, hardly a warm-up; spanbert: 2e-5, of questions 4 epochs; swish_rnn: 1e-5 "
        "constant, the paper's steps "
        "(default %(default)s)",
    )
    init_options(parser)


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", help="examples; the task's (or the run's) own by default")
    tfds_options(parser)


def _print_tasks() -> None:
    """Prints each task's columns, classes and metrics."""
    from experiments.finetune.kinds import kind_of
    from macaron_tf.data.tasks.definitions import TASKS

    print(f"{'task':9} {'columns of a table, with `label`':38} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.second))
        print(f"{task.name:9} {columns:38} {kind_of(task).answer:40} {' '.join(task.metrics)}")


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs one command; see `--help`."""
    options = _parser().parse_args(arguments)
    options.arguments = arguments
    options.devices = devices(options)
    # Each command imports what it needs: `--help` answers without TensorFlow.
    match options.command:
        case "train":
            from experiments.finetune import train

            train.run(options)
        case "grid":
            from experiments.finetune import grid

            grid.run(options)
        case "tasks":
            _print_tasks()
        case _:
            from experiments.finetune import evaluate

            commands = {
                "evaluate": evaluate.evaluate,
                "predict": evaluate.predict,
                "submit": evaluate.submit,
                "baseline": evaluate.baseline,
            }
            commands[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
