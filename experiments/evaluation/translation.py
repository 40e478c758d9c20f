"""Evaluation of translation and text-to-text runs, and the command `average`."""

import argparse
import dataclasses
import time

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.errors import check_packages
from macaron_tf.evaluation.translation import evaluate_translations
from macaron_tf.runs.run import Run, default_splits, save_scores
from macaron_tf.runs.text_to_text import TextPairs
from macaron_tf.runs.trainer import generated
from macaron_tf.runs.translation import TranslationRecipe
from macaron_tf.tasks.translation import Translation
from macaron_tf.training.checkpoints import (
    CheckpointDirectory,
    average_checkpoints,
    last_checkpoints,
    read_manifest,
)


def run_average(options: argparse.Namespace) -> None:
    """Averages the newest checkpoints of a run, of regular steps, into RUN/average."""
    opened = Run.open(options.run, options.trust_code)
    is_translation = isinstance(opened.recipe, TranslationRecipe)
    default = opened.recipe.task.average_last if is_translation else 5
    save_every_steps = opened.recipe.training.save_every_steps
    steps = CheckpointDirectory(opened.path).steps(save_every_steps)
    count = options.last or max(1, min(default, len(steps)))
    checkpoints = last_checkpoints(opened.path, count, save_every_steps)
    average = average_checkpoints(checkpoints, opened.path / "average")
    print(f"averaged {', '.join(checkpoint.name for checkpoint in checkpoints)} into {average}")


def run(opened: Run, options: argparse.Namespace) -> None:
    """Translates a split, and prints and saves the scores."""
    check_packages("evaluate")
    data, task = opened.recipe.data, opened.recipe.task
    metric, decoding = task.metric, task.decoding
    source, languages = options.source or data.source, list(data.languages)
    parts = data.parts if source == data.source else {}
    splits = [data.validation_split]
    split = options.split or (splits if parts else default_splits(source, splits))[0]
    pairs = read_pairs(source, parts.get(split, split), *languages, options.tfds)
    if options.backward:
        pairs, languages = [pair[::-1] for pair in pairs], languages[::-1]
        metric = dataclasses.replace(metric, language=data.source_language)
    checkpoint = opened.checkpoint(options.checkpoint)
    manifest = read_manifest(checkpoint)
    steps = manifest.get("averaged_steps", [manifest["step"]])
    references = [reference for _, reference in pairs]
    metric = metric.for_references(references)
    with options.devices.scope():
        translation = Translation(opened.load_network(checkpoint), opened.vocabulary, decoding)
    translator = translation.lines(backward=options.backward)

    start_time = time.monotonic()
    hypotheses = generated(translator, [line for line, _ in pairs], "translating")
    seconds = time.monotonic() - start_time
    scores = evaluate_translations(hypotheses, references, metric)
    print(
        "sacreBLEU {bleu:.2f} ({bleu_signature})\nchrF {chrf:.2f} ({chrf_signature})\n"
        "tokenized BLEU {tokenized_bleu:.2f} ({tokenized_signature})\n"
        "length ratio {length_ratio:.3f}, {sentences} sentences".format(**scores)
    )
    mean = f"the mean of steps {', '.join(map(str, steps))}"
    weights = mean if len(steps) > 1 else f"step {steps[0]:,}"
    print(f"{len(pairs)} lines in {seconds:.1f} s, checkpoint {checkpoint.name} ({weights})")
    record = {
        "steps": steps,
        "source": source,
        "split": split,
        "languages": languages,
        "decoding": dataclasses.asdict(translator.config),
        "metric": dataclasses.asdict(metric),
        "seconds": round(seconds, 2),
        **scores,
        "hypotheses": hypotheses,
        "references": references,
    }
    subject = f"{source}-{split}-{checkpoint.name}-beam{decoding.beam_size}"
    save_scores(options.output, opened.path, subject, checkpoint.name, **record)


def run_texts(opened: Run, options: argparse.Namespace) -> None:
    """Answers a split, and prints and saves the scores."""
    check_packages("evaluate")
    source = options.source or opened.recipe.data.source
    recipe = opened.recipe.changed(data=dict(source=source))
    split = options.split or default_splits(options.source, ["validation"])[0]
    examples = [TextPairs.read(recipe, name, split, options.tfds) for name in recipe.task.names]
    checkpoint = opened.checkpoint(options.checkpoint)
    decoding = dataclasses.asdict(recipe.task.decoding)
    with options.devices.scope():
        network = opened.load_network(checkpoint)
        settings = recipe.task_settings()
        translator = settings.lines(network, opened.vocabulary, recipe.task.decoding)
    for pairs in examples:
        answers = generated(translator, [source for source, _ in pairs.pairs], "answering")
        scores, baselines = pairs.score(answers), pairs.baselines()
        for name, value in scores.items():
            title = name if len(recipe.task.names) == 1 else f"{pairs.task}_{name}"
            beside = (
                f"   {lead} {found[name]:.4f}" for lead, found in baselines.items() if name in found
            )
            print(f"{title:24} {value:.4f}{''.join(beside)}")
        record = {
            "task": pairs.task,
            "source": recipe.examples_of(pairs.task)[0],
            "split": pairs.split,
            "decoding": decoding,
            "examples": len(answers),
            **scores,
            "baselines": baselines,
            "answers": answers,
            "targets": [target for _, target in pairs.pairs],
        }
        subject = f"{pairs.task}-{record['source']}-{pairs.split}-{checkpoint.name}"
        save_scores(options.output, opened.path, subject, checkpoint.name, **record)
