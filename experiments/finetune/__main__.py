"""Fine-tunes pre-trained models on tasks, scores them, and writes files for the GLUE server.

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

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
squad squad2 (questions answered by a span of a text), conll2003 (entities), race swag hellaswag
copa story_cloze (multiple choice); the command `tasks` shows their columns. Tasks on your own
table: classify (one text or two, and the class), regress (a score), tag (a tag for each word),
choose (the number of the correct one of choice1, choice2 ...). Columns are found by the header, or
named by --set table.text=COLUMN, table.text_b, table.label; `settings classify table` lists the
other settings. The run saves them.

FROM, the model to start from:
  RUN[@CHECKPOINT]   a pre-training run, a fine-tuning run of another task, or a folder that
                     save_pretrained wrote. For a run of experiments.elmo, an LSTM over its frozen
                     vectors is trained, or without them with --set words.elmo_place=none
  hugging-face:DIR   a sentence-transformers directory, or config.json, weights and tokenizer of a
                     BERT, RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, BART, GPT or GPT-2
  keras-hub:DIR      a preset's folder: BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2
  model-garden:DIR   bert_config.json, vocab.txt and checkpoint of a BERT
  hub:OWNER/NAME     any of these on Hugging Face's hub
  none               weights drawn at random; with --model NAME and --vocabulary DIR

sources of examples:
  tfds:NAME[/CONFIG][:VERSION]  a TensorFlow Datasets set in --data-dir that has the task's fields;
                                classify, regress and tag take any set, with its fields as columns
  tsv:FILE                      your own table, separated by tabs, with a header that names the
                                task's columns and `label`; may be .gz. {split} in the file's name
                                becomes train, validation or test
  jsonl:FILE, parquet:FILE      the same columns as lines of JSON objects, or in Parquet
  datasets:DIR                  a Hugging Face data set that save_to_disk wrote
  squad:FILE                    questions in SQuAD's JSON; {split} as above
  conll:FILE                    lines of a word and its tag, with empty lines between sentences;
                                {split} becomes train, and dev for conll2003
  python:MODULE:FUNCTION        your own function: FUNCTION(split) yields a dict of the columns for
                                each example
If a file's name has no {split}, part of the examples is held out for validation: --set
table.held_out=0.2

Lines for `predict` have one text, or two separated by a tab. squad: question, tab and context, or
a JSON object of both; conll2003: the words of a sentence, separated by spaces; multiple choice: the
text, the question if the task has one, and each choice, separated by tabs, with nothing for a
missing choice.
"""

_TASK = cli.argument("task", "name of a task")
_PRESET = cli.local_place(
    "--preset NAME",
    "settings of a paper. macaron: 3 epochs, learning rate 5e-5 linearly to 0; bert: the same, but "
    "2 epochs at 3e-5 for squad; gpt: 6.25e-5 with a short warm-up; elmo: 5 epochs at 1e-3; "
    "spanbert: 2e-5, 4 epochs for squad; swish_rnn: constant 1e-5 and the paper's steps. Or your "
    "own function of a task, FILE.py[:NAME] or package.module:NAME (default %(default)s)",
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
    """The command `tasks`: prints each task's columns, classes and metrics."""
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
        "fine-tune on a task, or resume an interrupted run",
        "experiments.finetune.train:run",
        cli.unless_resumed(
            _TASK,
            cli.RUN_TO_TRAIN,
            cli.place("--init FROM", "the model to start from, see below", required=True),
        ),
        _TRAINING,
        cli.CALLBACKS,
    ),
    cli.command(
        "grid",
        "fine-tune with every combination of settings, and write one table",
        "experiments.finetune.grid:run",
        cli.argument("tasks task", "names of tasks, the table's columns", nargs="+"),
        cli.place("out", "folder of the runs, grid.md and grid.json"),
        cli.place(
            "--init [NAME=]FROM",
            "models to start from, the table's rows; a row is named NAME, or like the folder",
            required=True,
            nargs="+",
        ),
        *(
            cli.count(f"{flag} N", f"{text} (default: the preset's)", least=least, nargs="+")
            for flag, least, text in (
                ("--learning-rates", 0.0, "peak learning rates"),
                ("--batch-sizes", 1, "numbers of examples per batch"),
                ("--epochs", 0.0, "numbers of passes over the training set"),
                ("--seeds", 0, "seeds; the table shows mean and deviation over them"),
            )
        ),
        cli.switch("--baseline", "add a row with the scores of the command `baseline`"),
        _TRAINING,
    ),
    cli.command(
        "evaluate",
        "score a run on a development set",
        "experiments.finetune.evaluate:evaluate",
        cli.TRAINED,
        cli.argument(
            "--split",
            "split to score (default: the task's development sets, or all of a file)",
        ),
        cli.argument(
            "--languages CODE",
            "languages to score one by one, if the model has several (XLM)",
            nargs="+",
        ),
        cli.place("--output DIR", "folder for metrics and predictions (default: RUN/scores)"),
        cli.EXAMPLES,
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the model's answer for each line",
        "experiments.finetune.evaluate:predict",
        cli.TRAINED,
        cli.argument("--language CODE", "language of the lines, if the model has several (XLM)"),
        cli.place("--input FILE", "file of the lines, see below (default: stdin)"),
        cli.place(
            "--output FILE",
            "file of the answers: label and probability of each class; the score; the answer with "
            "its probability, begin and end; or a line for each word and tag (default: stdout)",
        ),
        cli.JSON,
    ),
    cli.command(
        "submit",
        "predict the test sets and write files for the GLUE server",
        "experiments.finetune.evaluate:submit",
        cli.place("runs run", "folders of runs, one for each task", nargs="+"),
        cli.place("out", "folder for CoLA.tsv, RTE.tsv and so on"),
        cli.checkpoint(),
        cli.TFDS,
    ),
    cli.command(
        "baseline",
        "score a linear model on TF-IDF features (for tags, each word's most frequent tag)",
        "experiments.finetune.evaluate:baseline",
        _TASK,
        cli.place("--output FILE", "JSON file for the metrics"),
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
