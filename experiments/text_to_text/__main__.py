"""Fine-tunes T5 and BART on tasks in which both the input and the answer are text.

    python -m experiments.text_to_text train sst2 runs/t5-sst2 --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text evaluate runs/t5-sst2 --data-dir DIR
    echo "a fine film" | python -m experiments.text_to_text predict runs/t5-sst2
    python -m experiments.text_to_text train sst2+cola+rte runs/t5-all --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text train summarization runs/subjects --init runs/bart \\
        --data-dir DIR

To resume an interrupted `train`, give the same command again.
"""

from experiments import command_line as cli

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
with the input "sst2 sentence: ..." and the name of the class as answer, or a score rounded to 0.2;
squad, with "question: ... context: ..." and the answer; summarization (ROUGE), by default from
AESLC's e-mails to their subjects; translation (BLEU). A model can learn several tasks, joined by +.
--set mixing.limit and mixing.temperature decide how often it sees each. It is scored on each task,
and "score" is the mean; lines to predict begin with their task, "sst2 sentence: ...", or --task
names it.

--source is tfds:NAME, or tsv:FILE with the task's columns and `label` in a header. For
summarization and translation it is a source of pairs, whose forms `experiments.translate --help`
lists. Files have {split} in their names, which becomes train and validation. The two fields of a
TFDS set are given by --set fields="('en','de')".
"""

_INIT = cli.place(
    "--init RUN",
    "a pre-training run of T5 or BART, or hugging-face:DIR, a folder with a T5 or BART",
    required=True,
)

main = cli.program(
    "experiments.text_to_text",
    __doc__,
    cli.command(
        "train",
        "fine-tune on a task, or resume an interrupted run",
        "experiments.text_to_text.train:run",
        cli.unless_resumed(
            cli.argument("task", "name of a task, or several: sst2+cola"),
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
            "split to answer (default: the task's validation split)",
            default="validation",
        ),
        cli.checkpoint(),
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "print the answer to each line",
        "experiments.text_to_text.evaluate:predict",
        cli.place("run", "folder of the run, or another encoder-decoder, such as hugging-face:DIR"),
        cli.argument(
            "--task NAME",
            "task of the lines, if the model has several or its folder does not tell",
        ),
        cli.place(
            "--input FILE",
            "file of lines with one text, or two texts separated by a tab (default: stdin)",
        ),
        cli.place("--output FILE", "file of the answers (default: stdout)"),
        cli.checkpoint(),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.settings_by(
        "experiments.text_to_text.train:run_settings",
        cli.argument("task", "name of a task, or several: sst2+cola"),
        _INIT,
        cli.place("--source", "source of the examples (default: the task's)"),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
