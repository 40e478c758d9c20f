"""`finetune evaluate`: a run's metrics on any split of any source."""

import argparse
import hashlib
import json
import re
import time
from typing import Any

from experiments.finetune.kinds import kind_of
from experiments.finetune.prediction import measure
from experiments.finetune.run import FinetuningRun
from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.training.checkpoints import read_manifest


def run(options: argparse.Namespace) -> None:
    """Predicts, scores, prints, and writes metrics and predictions."""
    opened = FinetuningRun.open(options.run)
    task, kind = opened.task, kind_of(opened.task)
    source = options.source or opened.recipe.source
    splits = [options.split] if options.split else _default_splits(task, source)
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
    print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
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
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{source}-{'-'.join(splits)}")[-100:].strip("-.")
    digest = _digest(manifest["files"], examples)
    path = folder / f"{words}-{checkpoint.name}-{digest}.json"
    storage.write_aside(path, (json.dumps(record, indent=1) + "\n").encode())
    print(f"metrics and predictions: {path}")


def _default_splits(task: Task, source: str) -> list[str]:
    """The development sets; all of a file that is not cut into splits."""
    return list(task.validation_splits) if Source.of(source).has_splits else ["all"]


def _digest(files: dict, examples: dict[str, Any]) -> str:
    """Eight hex digits over weights and texts: another evaluation has another name."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
    for split, found in examples.items():
        values = [split, *vars(found).values()]
        digest.update(json.dumps(values, default=lambda array: array.tolist()).encode())
    return digest.hexdigest()[:8]
