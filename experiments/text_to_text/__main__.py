"""Fine-tunes T5 and BART on text-to-text tasks.

    python -m experiments.text_to_text train sst2 runs/t5-sst2 --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text evaluate runs/t5-sst2 --data-dir DIR
    echo "a fine film" | python -m experiments.text_to_text predict runs/t5-sst2

To train one model on several tasks, or a model for summarization:

    python -m experiments.text_to_text train sst2+cola+rte runs/t5-all --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text train summarization runs/subjects --init runs/bart \\
        --data-dir DIR

To resume an interrupted `train`, give the same command again.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE)
      The input is "sst2 sentence: ...". The answer is the name of a class. The answer for stsb is
      a score, rounded to a multiple of 0.2.
  squad
      The input is "question: ... context: ...". The answer is a span of the context.
  summarization
      The metric is ROUGE. The default source is AESLC, e-mails with their subject lines.
  translation
      The metric is BLEU.

Several task names, joined by +, train one model on all of these tasks. The settings mixing.limit
and mixing.temperature change the sampling rates of the tasks. Validation scores each task, and the
metric "score" is the mean over the tasks. In `predict`, each line must begin with the name of its
task, as in "sst2 sentence: ...", unless --task names one task for all lines.

sources of examples:
  For GLUE, SuperGLUE and squad, --source is tfds:NAME or tsv:FILE. The header of a TSV file names
  the columns of the task and `label`. For summarization and translation, --source is a source of
  text pairs; `experiments.translate --help` lists the forms. A file name contains {split}, which
  stands for train and validation. --set fields="('en','de')" names the two fields of a TFDS set.
"""

_INIT = cli.place(
    "--init RUN",
    "pre-trained T5 or BART: a pre-training run, or hugging-face:DIR",
    required=True,
)

main = cli.program(
    "experiments.text_to_text",
    __doc__,
    cli.command(
        "train",
        "fine-tune a model on one or more tasks, or resume an interrupted run",
        "experiments.text_to_text.train:run",
        cli.unless_resumed(
            cli.argument("task", "name of a task, or several names joined by +, such as sst2+cola"),
            cli.RUN_TO_TRAIN,
            _INIT,
        ),
        cli.EXAMPLES,
        cli.settings("training.max_steps=500 or max_source=512"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "answer the examples of a split and score the answers",
        "experiments.text_to_text.evaluate:evaluate",
        cli.RUN,
        cli.EXAMPLES,
        cli.argument(
            "--split",
            "split to answer (default: the validation split of the task)",
            default="validation",
        ),
        cli.checkpoint(),
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the answer to each line",
        "experiments.text_to_text.evaluate:predict",
        cli.place(
            "run", "folder of the run, or location of a T5 or BART, such as hugging-face:DIR"
        ),
        cli.argument(
            "--task NAME",
            "name of the task that the lines belong to; required if the model was trained on "
            "several tasks and lines do not begin with a task name, or if the model's folder names "
            "no task",
        ),
        cli.place(
            "--input FILE",
            "file with one text, or two texts separated by a tab, in each line (default: stdin)",
        ),
        cli.place("--output FILE", "file to write the answers to (default: stdout)"),
        cli.checkpoint(),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.settings_by(
        "experiments.text_to_text.train:run_settings",
        cli.argument("task", "name of a task, or several names joined by +, such as sst2+cola"),
        _INIT,
        cli.place("--source", "source of the examples (default: the source of the task)"),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
