"""Fine-tunes pre-trained models on tasks, evaluates them, and writes files for the GLUE server.

    macaron finetune train rte runs/rte --init runs/bert --data-dir DIR
    macaron finetune train classify runs/mine --source tsv:mine.tsv --init runs/bert
    macaron finetune evaluate runs/rte
    echo "Two men sleep.<TAB>Men sleep." | macaron finetune predict runs/rte
    macaron finetune train squad runs/squad --init runs/bert --preset bert
    echo "Who sleeps?<TAB>Two men sleep." | macaron finetune predict runs/squad
    echo "Ann Lee saw Rome ." | macaron finetune predict runs/conll2003
    macaron finetune submit runs/cola runs/rte glue/ --data-dir DIR

To resume an interrupted `train`, give the same command again. To fine-tune on several tasks, with
several seeds and learning rates, use `macaron compare --tasks`.
"""

import argparse

from experiments import command_line as cli

_FORMS = """tasks (the command `tasks` prints their columns, classes and metrics):
  GLUE                       cola sst2 mrpc qqp stsb mnli qnli rte wnli
  SuperGLUE                  boolq multirc
  natural language inference snli xnli
  question answering         squad squad2
  named entity recognition   conll2003
  multiple choice            race swag hellaswag copa story_cloze
tasks on your own table:
  classify   predicts the class of a text or of a pair of texts
  regress    predicts a score for a text or for a pair of texts
  tag        predicts a tag for each word of a sentence
  choose     selects one of several choices. The columns choice1, choice2 and so on contain the
             choices, and the column `label` contains the number of the correct choice, from 1
The columns are found by their names. To name other columns, give for example --set
table.text=review --set table.label=stars; `settings classify table` lists all settings of tables.

presets of --preset (`settings TASK --preset NAME` lists their settings): macaron, bert, gpt, elmo,
spanbert, swish_rnn

FROM, the model to start from:
  RUN[@CHECKPOINT]   folder of a pre-training or fine-tuning run, or folder written by
                     `save_pretrained`. CHECKPOINT is average, best, last or a training step
                     (default: the first of average, best and last that exists). From an ELMo run,
                     the command trains an LSTM on ELMo's frozen word vectors; with
                     --set words.elmo_place=none, the LSTM has no ELMo, as a baseline
  hugging-face:DIR   folder that transformers or sentence-transformers saved, with its tokenizer
  keras-hub:DIR      folder of a KerasHub preset
  model-garden:DIR   folder of a TensorFlow Model Garden BERT checkpoint
  hub:OWNER/NAME     Hugging Face Hub repository in one of these formats
  none               random weights; requires --model NAME and --vocabulary DIR

sources of examples: tfds:NAME, tsv:FILE (or .csv), jsonl:FILE, parquet:FILE, datasets:DIR or
python:MODULE:FUNCTION with the columns of the task and `label`; squad:FILE (SQuAD's JSON);
conll:FILE (a word and its tag per line). In the name of a file, as in tsv:reviews.{split}.tsv,
{split} stands for train, validation or test (dev in conll2003 and race; validation_matched and
validation_mismatched in mnli and xnli). Without {split}, the command holds out 10% of the examples
for validation; table.held_out changes the fraction. Text files may be compressed (.gz, .bz2, .xz).

lines for `predict`: one text, or several texts separated by tabs (question and context; or the
text, the question and the choices, where a missing choice is an empty column). For conll2003 and
tag, a line has the words of a sentence, separated by spaces.
"""

_TASK = cli.argument(
    "task", "name of the task, such as 'sst2' or 'classify'; the command `tasks` lists all tasks"
)
_PRESET = cli.local_path_argument(
    "--preset NAME",
    "preset of hyperparameters from a paper: 'macaron', 'bert', 'gpt', 'elmo', 'spanbert' or "
    "'swish_rnn'; or your own function that maps a task to a recipe, as FILE.py[:NAME] or "
    "package.module:NAME (default: '%(default)s')",
    default="macaron",
)
_TRAINING = cli.together(
    _PRESET,
    cli.INIT_NONE,
    cli.EXAMPLES,
    cli.settings("epochs=5, training.validate_every=100 or model.dropout=0"),
    cli.DEVICES,
)


def print_tasks(options: argparse.Namespace) -> None:
    """Runs the command `tasks`: prints the columns, classes and metrics of each task."""
    from macaron_tf.data.tasks.definitions import OWN_TASKS, TASKS
    from macaron_tf.tasks import labelled

    print(f"{'task':11} {'columns of a table, with `label`':46} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.question, *task.second))
        print(f"{task.name:11} {columns:46} {labelled(task).answer:40} {' '.join(task.metrics)}")
    for task in OWN_TASKS.values():
        columns, answers = "found in the header, or table.text", "classes of your table"
        print(f"{task.name:11} {columns:46} {answers:40} {' '.join(task.metrics)}")


main = cli.program(
    "macaron finetune",
    __doc__,
    cli.command(
        "train",
        "fine-tune a model on a task, or resume an interrupted run",
        "experiments.finetune.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.path_argument(
                "--init FROM",
                "model to start from (required), such as runs/bert, hugging-face:DIR or 'none' "
                "(random weights)",
            ),
        ),
        _TRAINING,
        cli.CALLBACKS,
    ),
    cli.command(
        "evaluate",
        "score a run on the validation splits of its task",
        "experiments.finetune.evaluate:evaluate",
        cli.extra("evaluate"),
        cli.TRAINED,
        cli.argument(
            "--split",
            "split to score, such as 'test' (default: the task's validation splits, or the whole "
            "of another file without {split} in its name)",
        ),
        cli.argument(
            "--languages CODE",
            "languages to score separately, for a multilingual model such as XLM (default: the "
            "language of the run)",
            nargs="+",
        ),
        cli.path_argument(
            "--output DIR",
            "output folder for the metrics and the predictions (default: RUN/scores)",
        ),
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the model's prediction for each input line",
        "experiments.finetune.evaluate:predict",
        cli.TRAINED,
        cli.argument(
            "--language CODE",
            "language of all input lines, for a multilingual model such as XLM (default: that of "
            "the run, or the model's first language)",
        ),
        cli.path_argument(
            "--input FILE",
            "file with a text, or several texts separated by tabs, per line (default: stdin)",
        ),
        cli.path_argument(
            "--output FILE",
            "output file (default: stdout). A line has the label and the probability of each class "
            "or choice; the score; the answer, its probability, start and end; or a word and its "
            "tag",
        ),
        cli.JSON,
    ),
    cli.command(
        "submit",
        "predict the labels of test sets, and write files for the GLUE server",
        "experiments.finetune.evaluate:submit",
        cli.path_argument(
            "runs run", "folders of the fine-tuning runs, one run for each task", nargs="+"
        ),
        cli.path_argument(
            "out", "output folder for the files to submit, such as CoLA.tsv and RTE.tsv"
        ),
        cli.checkpoint(),
        cli.TFDS,
    ),
    cli.command(
        "baseline",
        "score a linear model on TF-IDF features or, for tags, the most frequent tag of each word",
        "experiments.finetune.evaluate:baseline",
        cli.extra("evaluate"),
        _TASK,
        cli.path_argument(
            "--output FILE", "output JSON file for the metrics (default: only print the metrics)"
        ),
        cli.EXAMPLES,
    ),
    cli.command(
        "tasks",
        "list the tasks with their columns, classes and metrics",
        "experiments.finetune.commands:print_tasks",
    ),
    cli.settings_by("experiments.finetune.run:run_settings", _TASK, _PRESET),
    epilog=_FORMS,
)
