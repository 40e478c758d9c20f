"""Fine-tuning of encoders, from pre-trained weights to scores and GLUE's files.

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

`train` and `grid` go on where they were stopped when the same command is given again.
"""

import argparse

from experiments import command_line as cli

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
squad squad2 (questions whose answer stands in a text), conll2003 (entities), race swag hellaswag
copa story_cloze (choices); `tasks` says more. On a table of your own: classify (a text or two,
classes as the label column has them), regress (a score), tag (a tag for each word), choose (the
number of the right one of choice1, choice2 ...). Columns are found in the header, or named by
--set table.text=COLUMN, table.text_b, table.label; `settings classify table` lists what else there
is. The run keeps them.

FROM, what to start with:
  RUN[@CHECKPOINT]   a pre-training run, or a fine-tuning run of another task; or a folder that
                     save_pretrained wrote; of experiments.elmo an LSTM over its frozen vectors
                     is trained, --set words.elmo_place=none without them
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, BART, GPT or GPT-2
  keras-hub:DIR      a preset's folder: BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2
  model-garden:DIR   bert_config.json, vocab.txt and checkpoint of a BERT
  hub:OWNER/NAME     any of these on Hugging Face's hub
  none               weights drawn at random; with --model NAME and --vocabulary DIR

sources of examples:
  tfds:NAME[/CONFIG][:VERSION]  a TensorFlow Datasets set with the task's fields, in --data-dir; of
                                classify, regress and tag any set, whose fields are the columns
  tsv:FILE                      a table of one's own: a header naming the task's columns and
                                `label`, tabs between; {split} in the name becomes train,
                                validation or test; .gz too
  jsonl:FILE, parquet:FILE      the same columns in JSON objects, one a line, or in Parquet
  datasets:DIR                  a set of Hugging Face's, written by save_to_disk
  squad:FILE                    questions in SQuAD's JSON, {split} as above
  conll:FILE                    a word and its tag a line, empty lines between sentences, {split}
                                train, and dev for conll2003
  python:MODULE:FUNCTION        your own: FUNCTION(split) gives a dict of the columns an example
without {split}, a share of the file's examples is held out for validation: --set table.held_out=0.2

lines for `predict`:
  a text, or two with a tab between; of squad question and context, or a JSON object of both a
  line; of conll2003 the words of a sentence, spaces between; of choices the text, the question
  where the task has one, and each choice, tabs between, nothing for a choice that is not there
"""

_TASK = cli.argument("task", "name of a task")
_PRESET = cli.local_place(
    "--preset NAME",
    "macaron: 3 epochs, 5e-5 linearly to 0; bert: the same, of questions 2 at 3e-5; "
    "gpt: 6.25e-5, hardly a warm-up; elmo: 5 epochs at 1e-3; spanbert: 2e-5, of questions 4 "
    "epochs; swish_rnn: 1e-5 constant, the paper's steps; or a function of your own of a task, "
    "FILE.py[:NAME] or package.module:NAME (default %(default)s)",
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
    """Prints each task's columns, classes and metrics."""
    from macaron_tf.data.tasks.definitions import OWN_TASKS, TASKS
    from macaron_tf.tasks import labelled

    print(f"{'task':11} {'columns of a table, with `label`':46} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.question, *task.second))
        print(f"{task.name:11} {columns:46} {labelled(task).answer:40} {' '.join(task.metrics)}")
    for task in OWN_TASKS.values():
        columns, answers = "found in the header, or table.text", "those of your table"
        print(f"{task.name:11} {columns:46} {answers:40} {' '.join(task.metrics)}")


main = cli.program(
    "experiments.finetune",
    __doc__,
    cli.command(
        "train",
        "fine-tune on a task, or go on with an interrupted run",
        "experiments.finetune.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.place("--init FROM", "what to start with", required=True),
        ),
        _TRAINING,
        cli.CALLBACKS,
    ),
    cli.command(
        "grid",
        "fine-tune every combination of settings, and write one table",
        "experiments.finetune.grid:run",
        cli.argument("tasks task", "names of tasks: the columns", nargs="+"),
        cli.place("out", "folder of the runs and of grid.md and grid.json"),
        cli.place(
            "--init [NAME=]FROM",
            "what to start with: the rows; a row is called by the folder's name, or NAME",
            required=True,
            nargs="+",
        ),
        *(
            cli.count(f"{flag} N", f"{text} (the preset's by default)", least=least, nargs="+")
            for flag, least, text in (
                ("--learning-rates", 0.0, "peak learning rates"),
                ("--batch-sizes", 1, "examples a batch"),
                ("--epochs", 0.0, "passes over the training set"),
                ("--seeds", 0, "seeds; the table's means and deviations are over these"),
            )
        ),
        cli.switch("--baseline", "add a row of what `baseline` scores"),
        _TRAINING,
    ),
    cli.command(
        "evaluate",
        "score a run on a development set",
        "experiments.finetune.evaluate:evaluate",
        cli.TRAINED,
        cli.argument(
            "--split", "split to score; the task's development sets by default, of a file all"
        ),
        cli.argument(
            "--languages CODE",
            "languages to score one by one, of a model that knows several (XLM)",
            nargs="+",
        ),
        cli.place("--output DIR", "where metrics and predictions go; RUN/scores by default"),
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "answer lines, in order",
        "experiments.finetune.evaluate:predict",
        cli.TRAINED,
        cli.argument("--language CODE", "of the lines, of a model that knows several (XLM)"),
        cli.place("--input FILE", "lines, as below; stdin by default"),
        cli.place(
            "--output FILE",
            "a line each: the label and each class's probability; the score; the answer, its "
            "probability and where it begins and ends; of tags a line a word; stdout by default",
        ),
        cli.JSON,
    ),
    cli.command(
        "submit",
        "answer the test sets, in the GLUE server's files",
        "experiments.finetune.evaluate:submit",
        cli.place("runs run", "folders of runs, one for each task", nargs="+"),
        cli.place("out", "folder for CoLA.tsv, RTE.tsv and so on"),
        cli.checkpoint(),
        cli.TFDS,
    ),
    cli.command(
        "baseline",
        "score TF-IDF and a linear model (or each word's usual tag), to compare with",
        "experiments.finetune.evaluate:baseline",
        _TASK,
        cli.place("--output FILE", "JSON of the metrics"),
        cli.EXAMPLES,
    ),
    cli.command(
        "tasks",
        "list the tasks: columns, classes, metrics",
        "experiments.finetune.__main__:print_tasks",
    ),
    cli.settings_by("experiments.finetune.run:run_settings", _TASK, _PRESET),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
