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
  question answering         squad squad2
  named entity recognition   conll2003
  multiple choice            race swag hellaswag copa story_cloze
tasks on your own table:
  classify   classification of a text or of a pair of texts
  regress    regression: a score for a text or for a pair of texts
  tag        tagging: a tag for each word
  choose     multiple choice; the table has columns choice1, choice2 ..., and the label is the
             number of the correct choice
The command finds the columns of your table by their names. To name other columns, give for example
--set table.text=review --set table.label=stars. The command `settings classify table` lists all
settings of tables and their defaults.

presets of --preset, with the peak learning rate, the number of epochs and other settings:
  macaron    5e-5      3 epochs
  bert       5e-5      3 epochs; squad and squad2: 3e-5, 2 epochs
  gpt        6.25e-5   3 epochs; the warm-up takes 0.2% of the updates
  elmo       1e-3      5 epochs; no warm-up
  spanbert   2e-5      3 epochs; squad and squad2: 4 epochs
  swish_rnn  1e-5      20,000 to 200,000 updates, depending on the task; constant learning rate
                       after a warm-up of 1,000 updates
By default, the warm-up takes 10% of the updates, and the learning rate then falls linearly to 0.
`settings TASK --preset NAME` lists all settings of a preset.

FROM, the model to start from:
  RUN[@CHECKPOINT]   pre-training run, fine-tuning run of another task, or folder that the method
                     save_pretrained wrote. From a run of experiments.elmo, the command trains an
                     LSTM on ELMo's frozen vectors. --set words.elmo_place=none trains the LSTM
                     without ELMo's vectors
  hugging-face:DIR   folder of a sentence-transformers model, or folder with config.json, weights
                     and tokenizer of a BERT, RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, BART, GPT
                     or GPT-2
  keras-hub:DIR      folder of a KerasHub preset of BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2
  model-garden:DIR   folder with bert_config.json, vocab.txt and a checkpoint of a BERT
  hub:OWNER/NAME     repository on the Hugging Face hub that contains one of the folders above
  none               random weights; needs --model NAME and --vocabulary DIR

sources of examples:
  tfds:NAME[/CONFIG][:VERSION]  set of TensorFlow Datasets in --data-dir. For classify, regress and
                                tag, the fields of the set are the columns. For other tasks, the set
                                must have the fields of the task
  tsv:FILE                      tab-separated table, or comma-separated table if FILE ends in .csv.
                                The header names the columns of the task and the column `label`
  jsonl:FILE                    file with one JSON object per line, whose fields are the columns
  parquet:FILE                  Parquet file with the same columns
  datasets:DIR                  folder that Hugging Face's `Dataset.save_to_disk` wrote, with the
                                same columns
  squad:FILE                    JSON file in SQuAD's format
  conll:FILE                    file with a word and its tag on each line, and an empty line after
                                each sentence
  python:MODULE:FUNCTION        your own function; FUNCTION(split) yields an example at a time, as a
                                dict that maps each column to its value
In the name of a file, as in tsv:reviews.{split}.tsv, {split} stands for train, validation or test.
conll2003 and race read dev in place of validation. mnli and xnli read validation_matched and
validation_mismatched. If the name has no {split}, the command holds out 10% of the examples for
validation (20% with --set table.held_out=0.2). Text files may be compressed (.gz, .bz2, .xz).

lines for `predict`:
  classification, regression    a text, or two texts separated by a tab
  squad, squad2                 a question and its context, separated by a tab, or a JSON object
                                with the fields question and context
  conll2003, tag                the words of a sentence, separated by spaces
  multiple choice               the text, the question if the task has questions, and the choices,
                                separated by tabs; an absent choice is an empty text
"""

_TASK = cli.argument("task", "name of the task; the tasks are listed below")
_PRESET = cli.local_place(
    "--preset NAME",
    "hyperparameters of a paper, by a name in the table below, or your own function from a task to "
    "a recipe, as FILE.py[:NAME] or package.module:NAME (default: %(default)s)",
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
            cli.place(
                "--init FROM", "model to start from; the forms are listed below", required=True
            ),
        ),
        _TRAINING,
        cli.CALLBACKS,
    ),
    cli.command(
        "grid",
        "fine-tune with every combination of model, task and hyperparameters, and write a table of "
        "scores",
        "experiments.finetune.grid:run",
        cli.argument(
            "tasks task",
            "names of the tasks; the table of scores has one column for each task",
            nargs="+",
        ),
        cli.place("out", "folder for the runs and for the table, grid.md and grid.json"),
        cli.place(
            "--init [NAME=]FROM",
            "models to start from, in a form below; the table has a row called NAME for each model "
            "(default NAME: the name of the model's folder)",
            required=True,
            nargs="+",
        ),
        *(
            cli.count(
                f"{flag} N", f"{text} (default: the value of the preset)", least=least, nargs="+"
            )
            for flag, least, text in (
                ("--learning-rates", 0.0, "peak learning rates to try"),
                ("--batch-sizes", 1, "batch sizes to try, in examples"),
                ("--epochs", 0.0, "numbers of epochs to try"),
                ("--seeds", 0, "random seeds; the table shows means and standard deviations"),
            )
        ),
        cli.switch(
            "--baseline",
            "add a row to the table with the scores that the command `baseline` prints",
        ),
        _TRAINING,
    ),
    cli.command(
        "evaluate",
        "score a run on the development sets of its task",
        "experiments.finetune.evaluate:evaluate",
        cli.TRAINED,
        cli.argument(
            "--split",
            "split to score, such as test (default: the development sets of the task; for another "
            "--source without {split} in its name, the whole file)",
        ),
        cli.argument(
            "--languages CODE",
            "codes of languages to score separately, for a multilingual model such as XLM "
            "(default: the language of the run)",
            nargs="+",
        ),
        cli.place(
            "--output DIR", "folder for the metrics and the predictions (default: RUN/scores)"
        ),
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
            "code of the language of all lines, for a multilingual model such as XLM (default: the "
            "language of the run or, if the run has none, the model's first language)",
        ),
        cli.place("--input FILE", "file with one input per line, in a form below (default: stdin)"),
        cli.place(
            "--output FILE",
            "file for the predictions (default: stdout). A prediction is a label with the "
            "probability of each class, a score, an answer with its probability, start and end, or "
            "a line for each word with its tag",
        ),
        cli.JSON,
    ),
    cli.command(
        "submit",
        "predict the labels of test sets, and write files for the GLUE server",
        "experiments.finetune.evaluate:submit",
        cli.place("runs run", "folders of fine-tuning runs, one run for each task", nargs="+"),
        cli.place("out", "folder for the files to submit, such as CoLA.tsv and RTE.tsv"),
        cli.checkpoint(),
        cli.TFDS,
    ),
    cli.command(
        "baseline",
        "score a simple baseline: a linear model on TF-IDF features or, for tagging, the most "
        "frequent tag of each word",
        "experiments.finetune.evaluate:baseline",
        _TASK,
        cli.place("--output FILE", "JSON file for the metrics (default: only print the metrics)"),
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
