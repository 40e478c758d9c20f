"""Fine-tunes pre-trained models on tasks, evaluates them, and writes files for the GLUE server.

    python -m experiments.finetune train rte runs/rte --init runs/bert --data-dir DIR
    python -m experiments.finetune train classify runs/mine --source tsv:mine.tsv --init runs/bert
    python -m experiments.finetune evaluate runs/rte
    echo "Two men sleep.<TAB>Men sleep." | python -m experiments.finetune predict runs/rte
    python -m experiments.finetune train squad runs/squad --init runs/bert --preset bert
    echo "Who sleeps?<TAB>Two men sleep." | python -m experiments.finetune predict runs/squad
    echo "Ann Lee saw Rome ." | python -m experiments.finetune predict runs/conll2003
    python -m experiments.finetune grid cola rte stsb runs/grid --init runs/bert runs/macaron \\
        --learning-rates 5e-5 3e-5 --batch-sizes 16 32 --seeds 1 2 3 --data-dir DIR
    python -m experiments.finetune submit runs/cola runs/rte glue/ --data-dir DIR

To resume an interrupted `train` or `grid`, give the same command again.
"""

import argparse

from experiments import command_line as cli

_FORMS = """tasks (the command `tasks` prints their columns, classes and metrics):
  GLUE                       cola sst2 mrpc qqp stsb mnli qnli rte wnli
  SuperGLUE                  boolq multirc
  natural language inference snli xnli
  extractive answers         squad squad2
  named entities             conll2003
  multiple choice            race swag hellaswag copa story_cloze
tasks on your own table:
  classify   one text or two texts, and a class
  regress    one text or two texts, and a score
  tag        words, and a tag for each word
  choose     multiple choice: a text, columns choice1, choice2 ..., and the number of the correct
             choice
The command finds the columns of your table by the header. --set table.text=COLUMN, table.text_b and
table.label name them explicitly; `settings classify table` lists all settings of the table. The run
saves these settings.

FROM, the model to start from:
  RUN[@CHECKPOINT]   a pre-training run, a fine-tuning run of another task, or a folder that
                     save_pretrained wrote. From a run of experiments.elmo, the command trains an
                     LSTM over ELMo's frozen vectors; with --set words.elmo_place=none, it trains
                     the LSTM without these vectors
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, BART, GPT or GPT-2
  keras-hub:DIR      folder of a preset of BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2
  model-garden:DIR   bert_config.json, vocab.txt and checkpoint of a BERT
  hub:OWNER/NAME     a model of one of these libraries on Hugging Face's hub
  none               random weights; needs --model NAME and --vocabulary DIR

sources of examples:
  tfds:NAME[/CONFIG][:VERSION]  a TensorFlow Datasets set in --data-dir with the task's fields;
                                classify, regress and tag accept any set, whose fields are columns
  tsv:FILE                      your own tab-separated table; the header names the task's columns
                                and `label`; may be .gz. {split} in the file's name stands for
                                train, validation or test
  jsonl:FILE, parquet:FILE      the same columns in lines of JSON objects, or in Parquet
  datasets:DIR                  a Hugging Face data set that save_to_disk wrote
  squad:FILE                    questions in SQuAD's JSON format; {split} as above
  conll:FILE                    a word and its tag on each line, and empty lines between sentences;
                                {split} stands for train or, with conll2003, dev
  python:MODULE:FUNCTION        your own function: FUNCTION(split) yields a dict of the columns for
                                each example
If the file's name has no {split}, the command holds out a part of the examples for validation, such
as a fifth with --set table.held_out=0.2.

A line for `predict` has one text, or two texts separated by a tab. squad: question, tab and
context, or a JSON object with both. conll2003: the words of a sentence, separated by spaces.
Multiple choice: the text, the question if the task has one, and the choices, all separated by tabs;
a missing choice is empty.
"""

_TASK = cli.argument("task", "name of the task")
_PRESET = cli.local_place(
    "--preset NAME",
    "settings of a paper: macaron (3 epochs, learning rate 5e-5), bert (as macaron, but 2 epochs "
    "at 3e-5 for squad), gpt (6.25e-5, short warm-up), elmo (5 epochs at 1e-3), spanbert (2e-5, "
    "4 epochs for squad) or swish_rnn (constant 1e-5, update counts of the paper); or your own "
    "function of a task, FILE.py[:NAME] or package.module:NAME (default: %(default)s)",
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
    "experiments.finetune",
    __doc__,
    cli.command(
        "train",
        "fine-tune a model on a task, or resume an interrupted run",
        "experiments.finetune.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.place("--init FROM", "model to start from; the forms are below", required=True),
        ),
        _TRAINING,
        cli.CALLBACKS,
    ),
    cli.command(
        "grid",
        "fine-tune with every combination of settings, and write a table of scores",
        "experiments.finetune.grid:run",
        cli.argument("tasks task", "names of tasks, which are the columns of the table", nargs="+"),
        cli.place("out", "folder for the runs, grid.md and grid.json"),
        cli.place(
            "--init [NAME=]FROM",
            "models to start from, which are the rows of the table; NAME is the name of the row "
            "(default: the name of the folder)",
            required=True,
            nargs="+",
        ),
        *(
            cli.count(
                f"{flag} N", f"{text} (default: the value of the preset)", least=least, nargs="+"
            )
            for flag, least, text in (
                ("--learning-rates", 0.0, "peak learning rates to try"),
                ("--batch-sizes", 1, "numbers of examples per batch to try"),
                ("--epochs", 0.0, "numbers of passes over the training set to try"),
                ("--seeds", 0, "random seeds; the table shows mean and deviation over the seeds"),
            )
        ),
        cli.switch("--baseline", "add a table row with the scores of the command `baseline`"),
        _TRAINING,
    ),
    cli.command(
        "evaluate",
        "score a run on a development set",
        "experiments.finetune.evaluate:evaluate",
        cli.TRAINED,
        cli.argument(
            "--split",
            "split to score (default: the task's development sets, or the whole file if a file has "
            "no splits)",
        ),
        cli.argument(
            "--languages CODE",
            "languages to score separately, for a model with several languages, such as XLM",
            nargs="+",
        ),
        cli.place("--output DIR", "folder for metrics and predictions (default: RUN/scores)"),
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the model's prediction for each line",
        "experiments.finetune.evaluate:predict",
        cli.TRAINED,
        cli.argument(
            "--language CODE",
            "language of the lines, for a model with several languages, such as XLM (default: the "
            "language of the run, or the first language)",
        ),
        cli.place("--input FILE", "file of the lines, in the form below (default: stdin)"),
        cli.place(
            "--output FILE",
            "file for the predictions: the label and the probability of each class, a score, an "
            "answer with its probability, start and end, or a line for each word and tag (default: "
            "stdout)",
        ),
        cli.JSON,
    ),
    cli.command(
        "submit",
        "predict test sets and write files for the GLUE server",
        "experiments.finetune.evaluate:submit",
        cli.place("runs run", "folders of runs, one run for each task", nargs="+"),
        cli.place("out", "folder for the files, such as CoLA.tsv and RTE.tsv"),
        cli.checkpoint(),
        cli.TFDS,
    ),
    cli.command(
        "baseline",
        "score a simple baseline: a linear model on TF-IDF features, or for tagging the most "
        "frequent tag of each word",
        "experiments.finetune.evaluate:baseline",
        _TASK,
        cli.place("--output FILE", "JSON file for the metrics (default: print them only)"),
        cli.EXAMPLES,
    ),
    cli.command(
        "tasks",
        "list the tasks with their columns, classes and metrics",
        "experiments.finetune.__main__:print_tasks",
    ),
    cli.settings_by("experiments.finetune.run:run_settings", _TASK, _PRESET),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
