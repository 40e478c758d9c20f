"""Fine-tuning of T5 and BART: every task as a text whose answer is a text.

    python -m experiments.text_to_text train sst2 runs/t5-sst2 --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text evaluate runs/t5-sst2 --data-dir DIR
    echo "a fine film" | python -m experiments.text_to_text predict runs/t5-sst2
    python -m experiments.text_to_text train sst2+cola+rte runs/t5-all --init runs/t5 --data-dir DIR
    python -m experiments.text_to_text train summarization runs/subjects --init runs/bart \\
        --data-dir DIR

`train` goes on where it was stopped when the same command is given again.
"""

from experiments import command_line as cli

_FORMS = """tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli (GLUE), boolq multirc (SuperGLUE),
each behind its name, "sst2 sentence: ...", with the class's name for an answer, or a score to the
nearest 0.2; squad, "question: ... context: ...", with the answer; summarization (ROUGE), by default
of AESLC's e-mails to their subjects; translation (BLEU). One model learns several, with + between,
at the rates of --set mixing.limit and mixing.temperature; it is judged on each, "score" being the
mean, and lines to predict begin with their task, "sst2 sentence: ...", or --task names it

--source of examples: tfds:NAME or tsv:FILE with the task's columns and `label` under a header; of
the last two pairs of texts, `experiments.translate --help` lists the forms; files have {split} in
their names, train and validation, and a TFDS set's two sides are --set fields="('en','de')"
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
        "fine-tune on a task, or go on with an interrupted run",
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
        "answer a split and score the answers",
        "experiments.text_to_text.evaluate:evaluate",
        cli.RUN,
        cli.EXAMPLES,
        cli.argument("--split", "its split (default: the task's validation)", default="validation"),
        cli.checkpoint(),
        cli.DEVICES,
    ),
    cli.command(
        "predict",
        "answer lines, a line out for a line in",
        "experiments.text_to_text.evaluate:predict",
        cli.place(
            "run", "folder of the run, or another encoder-decoder's, such as hugging-face:DIR"
        ),
        cli.argument(
            "--task NAME", "that a model answers which knows several, or whose folder does not say"
        ),
        cli.place("--input FILE", "texts, of two with a tab between; stdin by default"),
        cli.place("--output FILE", "answers; stdout by default"),
        cli.checkpoint(),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.settings_by(
        "experiments.text_to_text.train:run_settings",
        cli.argument("task", "name of a task, or several: sst2+cola"),
        _INIT,
        cli.place("--source", "examples; the task's own by default"),
    ),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
