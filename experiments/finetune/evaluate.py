"""`finetune predict`, `evaluate`, `submit` and `baseline`: answers and scores."""

import argparse
import hashlib
import json
import time
from typing import Any

from experiments.finetune.kinds import kind_of
from experiments.finetune.run import FinetuningRun, by_split, measure
from experiments.finetune.train import TRAIN, TaskData
from experiments.lines import answer_lines
from experiments.run import write_json
from experiments.scores import default_splits, metrics_line, write_scores
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.reading import read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import write_submission
from macaron_tf.io import paths as storage
from macaron_tf.training.checkpoints import read_manifest


def predict(options: argparse.Namespace) -> None:
    """Answers the lines of a file or stdin, in order."""
    predictor = FinetuningRun.open(options.run).predictor(options.checkpoint)
    kind = predictor.kind

    def answer(lines: list[str], first: int) -> str:
        examples = kind.parse(lines, first)
        return kind.lines(predictor.of_examples(examples), examples)

    answer_lines(options.input, options.output, answer)


def evaluate(options: argparse.Namespace) -> None:
    """Scores a run on any split of any source; writes metrics and predictions."""
    opened = FinetuningRun.open(options.run)
    task, kind = opened.task, kind_of(opened.task)
    source = options.source or opened.recipe.source
    splits = [options.split] if options.split else default_splits(source, [*task.validation_splits])
    examples = {
        split: kind.read(split, options.data_dir, options.download, source) for split in splits
    }
    for split, found in examples.items():
        if found.labels is None:
            raise UserError(
                f"split {split!r} of {source} has no labels to score against: "
                "`predict` (or `submit`) answers it"
            )
    checkpoint = opened.checkpoint(options.checkpoint)
    manifest = read_manifest(checkpoint)
    with options.devices.scope():
        predictor = opened.predictor(checkpoint)
    began = time.monotonic()
    outputs = {split: predictor.of_examples(found) for split, found in examples.items()}
    seconds = time.monotonic() - began
    metrics = measure(task, outputs, examples)
    print(metrics_line(metrics))
    count = sum(map(len, examples.values()))
    step = manifest["step"]
    print(f"{count:,} examples of {', '.join(splits)} in {seconds:.1f} s, step {step:,}")
    record = {
        "run": str(opened.path),
        "task": task.name,
        "source": source,
        "splits": splits,
        "checkpoint": checkpoint.name,
        "step": step,
        "seconds": round(seconds, 2),
        "metrics": metrics,
        "predictions": {
            split: kind.answers(found, examples[split]) for split, found in outputs.items()
        },
    }
    folder = storage.as_path(options.output) if options.output else opened.path / "scores"
    ending = f"{checkpoint.name}-{_digest(manifest['files'], examples)}"
    path = write_scores(folder, f"{source}-{'-'.join(splits)}", ending, record)
    print(f"metrics and predictions: {path}")


def _digest(files: dict, examples: dict[str, Any]) -> str:
    """Eight hex digits over weights and texts: another evaluation has another name."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
    for split, found in examples.items():
        values = [split, *vars(found).values()]
        digest.update(json.dumps(values, default=lambda array: array.tolist()).encode())
    return digest.hexdigest()[:8]


def submit(options: argparse.Namespace) -> None:
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


def baseline(options: argparse.Namespace) -> None:
    """Fits, scores and prints what can be had without a network."""
    task = get_task(options.task)
    data = TaskData.read(task, options.source, options.data_dir, options.download)
    metrics = score_baseline(data)
    if metrics is None:
        raise UserError(
            f"there is no baseline for {task.name}: give a task of classes, scores or tags"
        )
    print(metrics_line(metrics))
    if options.output:
        record = {"task": task.name, "source": options.source or task.source, **metrics}
        write_json(storage.as_path(options.output), record)


def score_baseline(data: TaskData) -> dict[str, float] | None:
    """Metrics of the kind's baseline, as `measure` gives them; None where there is no baseline.

    Raises:
        UserError: see `TaskKind.baseline`.
    """
    kind = kind_of(data.task)
    predictions = kind.baseline(data.splits[TRAIN])
    if predictions is None:
        return None
    return by_split(
        {
            split: kind.score(predictions(examples), examples)
            for split, examples in data.validation.items()
        }
    )
