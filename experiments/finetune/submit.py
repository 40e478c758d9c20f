"""`finetune submit`: the files that the benchmarks' servers score."""

import argparse

from experiments.finetune.run import FinetuningRun
from macaron_tf.data.tasks.reading import read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import write_submission


def run(options: argparse.Namespace) -> None:
    """Answers the test sets of each run's task; nothing is written before all are there."""
    runs: dict[str, FinetuningRun] = {}
    for path in options.runs:
        opened = FinetuningRun.open(path)
        if not opened.task.submissions:
            raise UserError(
                f"{path} is of {opened.task.name}, of which no server takes files: `evaluate` "
                "scores it"
            )
        if opened.task.name in runs:
            raise UserError(
                f"{runs[opened.task.name].path} and {path} are both of {opened.task.name}: "
                "give one run for each task"
            )
        runs[opened.task.name] = opened
    test_sets = [
        (
            opened,
            file,
            read_examples(opened.task, file.split, options.data_dir, options.download, file.source),
        )
        for opened in runs.values()
        for file in opened.task.submissions
    ]
    checkpoints = {name: opened.checkpoint(options.checkpoint) for name, opened in runs.items()}
    predictors = {name: opened.predictor(checkpoints[name]) for name, opened in runs.items()}
    answers = [
        predictors[opened.task.name].kind.decide(predictors[opened.task.name].of_examples(examples))
        for opened, _, examples in test_sets
    ]
    out = options.out
    for (opened, file, examples), predictions in zip(test_sets, answers, strict=True):
        path = write_submission(
            opened.task, file, out, predictions, examples.indices, examples.groups
        )
        print(f"{path}: {len(examples):,} answers of {opened.path}")
    print(f"next: zip -j {out}.zip {out}/*   and hand that in")
