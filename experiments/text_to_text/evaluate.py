"""`text_to_text evaluate`: a run's answers to a split, scored by the task's metrics."""

import argparse
import dataclasses
import json

from experiments.text_to_text.data import TextPairs
from experiments.text_to_text.run import TextRun
from macaron_tf.io import paths as storage


def run(options: argparse.Namespace) -> None:
    """Answers, scores, prints, and writes scores and answers."""
    opened = TextRun.open(options.run)
    recipe = opened.recipe
    if options.source:
        recipe = dataclasses.replace(recipe, source=options.source)
    pairs = TextPairs.read(recipe, options.split, options.data_dir, options.download)
    checkpoint = opened.checkpoint(options.checkpoint)
    with options.devices.scope():
        writer = opened.writer(opened.load_network(checkpoint))
    answers = writer.translate([source for source, _ in pairs.pairs]).best
    scores = pairs.score(answers)
    for name, value in scores.items():
        print(f"{name:24} {value:.4f}")
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "source": recipe.source,
        "split": options.split,
        "examples": len(answers),
        **scores,
        "answers": answers,
        "targets": [target for _, target in pairs.pairs],
    }
    path = opened.path / "scores" / f"{recipe.task}-{options.split}-{checkpoint.name}.json"
    storage.write_aside(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"scores and answers: {path}")
