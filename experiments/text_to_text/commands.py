"""Fine-tunes T5 and BART on text-to-text tasks.

    macaron text_to_text train sst2 runs/t5-sst2 --init runs/t5 --data-dir DIR
    macaron text_to_text evaluate runs/t5-sst2 --data-dir DIR
    echo "a fine film" | macaron text_to_text predict runs/t5-sst2

To train one model on several tasks, or a model for summarization:

    macaron text_to_text train sst2+cola+rte runs/t5-all --init runs/t5 --data-dir DIR
    macaron text_to_text train summarization runs/subjects --init runs/bart \\
        --data-dir DIR

To resume an interrupted `train`, give the same command again.
"""

from experiments import command_line as cli

_FORMS = """tasks:
  cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE)
      The input begins with the name of the task, as in "sst2 sentence: ...". The output is the
      name of a class. For stsb, the output is a score, rounded to a multiple of 0.2.
  squad
      The input is "question: ... context: ...". The output is a span of the context.
  summarization
      The metric is ROUGE. The default source is AESLC, which has e-mails and subject lines.
  translation
      The metric is BLEU. The task has no default source, so --source is required.

With several task names, joined by +, the command trains one model on all of the tasks. The settings
mixing.limit and mixing.temperature change the sampling rates of the tasks. Validation scores each
task, and the metric "score" is the mean over the tasks. In `predict`, each line must then begin
with the name of a task, as in "sst2 sentence: ...", unless --task names one task for all lines.

sources of examples:
  For GLUE and SuperGLUE, --source is tfds:NAME or a table, such as tsv:FILE. The header of a TSV
  file names the columns of the task and `label`. For squad, --source is tfds:NAME or squad:FILE.
  For summarization and translation, --source is a source of text pairs; `macaron translate
  train --help` lists the forms. The name of a file must contain {split}, which stands for train or
  validation. --set fields="('en','de')" names the two fields in a dataset of TensorFlow Datasets.
"""

_INIT = cli.path_argument(
    "--init RUN",
    "pre-trained T5 or BART to start from: a pre-training run or hugging-face:DIR",
    required=True,
)

main = cli.program(
    "macaron text_to_text",
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
        "generate outputs for the examples of a split, and score the outputs",
        "experiments.text_to_text.evaluate:evaluate",
        cli.extra("evaluate"),
        cli.RUN,
        cli.EXAMPLES,
        cli.argument(
            "--split",
            "split to score, such as 'test' (default: the first validation split of the task)",
            default="validation",
        ),
        cli.checkpoint(),
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the model's output for each input line",
        "experiments.text_to_text.evaluate:predict",
        cli.path_argument("run", "folder of the run, or hugging-face:DIR with a T5 or BART"),
        cli.argument(
            "--task NAME",
            "task of all input lines, such as 'sst2' (default: the task that the model was trained "
            "for; of several, the name at the start of each line)",
        ),
        cli.path_argument(
            "--input FILE",
            "file with a text, or two texts separated by a tab, per line (default: stdin)",
        ),
        cli.path_argument("--output FILE", "file for the model's outputs (default: stdout)"),
        cli.checkpoint(),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.settings_by(
        "experiments.text_to_text.train:run_settings",
        cli.argument("task", "name of a task, or several names joined by +, such as sst2+cola"),
        _INIT,
        cli.path_argument(
            "--source", "source of the examples, such as tsv:FILE (default: the task's own source)"
        ),
    ),
    epilog=_FORMS,
)
