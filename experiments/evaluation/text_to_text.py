"""Evaluation of text-to-text runs."""

import argparse
import dataclasses

from macaron_tf.errors import check_packages
from macaron_tf.runs.run import default_splits, save_scores, scores_name
from macaron_tf.runs.text_to_text import TextPairs, TextRun
from macaron_tf.runs.trainer import generated


def evaluate(opened: TextRun, options: argparse.Namespace) -> None:
    """Answers a split, and prints and saves the scores."""
    check_packages("evaluate")
    recipe = opened.recipe.changed(source=options.source or opened.recipe.source)
    split = options.split or default_splits(options.source, ["validation"])[0]
    examples = [TextPairs.read(recipe, name, split, options.tfds) for name in recipe.tasks]
    checkpoint = opened.checkpoint(options.checkpoint)
    decoding = dataclasses.asdict(recipe.decoding)
    with options.devices.scope():
        translator = opened.line_translator(opened.load_network(checkpoint))
    for pairs in examples:
        answers = generated(translator, [source for source, _ in pairs.pairs], "answering")
        scores = pairs.score(answers)
        for name, value in scores.items():
            title = name if len(recipe.tasks) == 1 else f"{pairs.task}_{name}"
            print(f"{title:24} {value:.4f}")
        record = {
            "task": pairs.task,
            "source": recipe.examples_of(pairs.task)[0],
            "split": pairs.split,
            "decoding": decoding,
            "examples": len(answers),
            **scores,
            "answers": answers,
            "targets": [target for _, target in pairs.pairs],
        }
        subject = f"{pairs.task}-{record['source']}-{pairs.split}"
        name = scores_name(subject, f"{checkpoint.name}-", [pairs.pairs, decoding])
        save_scores(options.output, opened.path, name, checkpoint.name, **record)
