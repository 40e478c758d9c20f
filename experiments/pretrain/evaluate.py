"""The commands `evaluate`, which computes validation metrics, and `fill`, which fills in [MASK]."""

import argparse
import dataclasses
import sys

from experiments.lines import json_line
from experiments.pretrain.run import PretrainingRun
from experiments.pretrain.train import check_corpus, validation_batches
from experiments.run import open_model, save_scores
from experiments.train_run import evaluate_model
from macaron_tf.cli.program import decoded
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import TextError, UserError
from macaron_tf.io.progress import Progress
from macaron_tf.tasks.filling import MASK, Filling
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import build_fit_model


def run(options: argparse.Namespace) -> None:
    """Runs the command `evaluate`: prints the validation metrics of a run, and saves them."""
    opened = PretrainingRun.open(options.run, options.trust_code)
    recipe, has_memory = opened.recipe, opened.recipe.builtin_objective.has_memory
    if (options.memory or options.clamp) and not has_memory:
        raise UserError(
            f"{opened.path} has no memory, so --memory and --clamp have no effect: leave them out"
        )
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary.hash, opened.path)
    checkpoint = opened.checkpoint(options.checkpoint)
    memory_lengths = options.memory or [recipe.memory_length]
    rows = corpus.rows("validation")
    if has_memory:
        # The rows may have another length than in training, because the memory holds earlier text.
        batch_size = min(recipe.batch_size, rows)
        recipe = recipe.changed(corpus=corpus.config, batch_size=batch_size)
        if remainder := rows % batch_size:
            rows -= remainder
            print(
                f"the last {remainder:,} row(s) are not evaluated, because the {batch_size} texts "
                "of a batch need equal lengths"
            )
    check_corpus(recipe, corpus, any_pairs=True)
    languages = recipe.corpus.languages
    if languages != corpus.config.languages:
        prepared, trained = (
            f"the language codes {', '.join(codes)}" if codes else "no language codes"
            for codes in (corpus.config.languages, languages)
        )
        raise UserError(
            f"{corpus.folder} has {prepared}, but {opened.path} was trained with {trained}"
        )
    if options.clamp is not None:
        model_options = {**dict(recipe.model_options), "clamp_length": options.clamp}
        recipe = recipe.changed(model_options=tuple(sorted(model_options.items())))
    records = []
    for memory_length in memory_lengths:
        changed_recipe = recipe.changed(
            validation_batches=None,
            memory_length=memory_length,
            training=dict(accumulation_steps=1),  # otherwise each micro-batch has its own memory
        )
        with options.devices.scope():
            changed_run = dataclasses.replace(opened, recipe=changed_recipe)
            network = changed_run.load_network(checkpoint, saved=not has_memory)
            objective = changed_recipe.make_objective()
            model = build_fit_model(network, objective, changed_recipe.training)
        with Progress("evaluating"):
            batches = validation_batches(changed_recipe, corpus, objective)
            metrics = evaluate_model(model, batches)
        memory_settings = {}
        if has_memory:
            memory_settings = {"memory": memory_length, "clamp": options.clamp}
            print(f"{'memory':24} {memory_length}")
        for name, value in metrics.items():
            print(f"{name:24} {value:.4f}")
        records.append(
            {
                "run": str(opened.path),
                "checkpoint": checkpoint.name,
                "corpus": str(options.corpus),
                "fingerprint": corpus.fingerprint,
                "rows": rows,
                **memory_settings,
                **metrics,
            }
        )
    suffix = "".join(f"-{length}" for length in ["memory", *memory_lengths]) if has_memory else ""
    name = f"{corpus.fingerprint[:8]}-{checkpoint.name}{suffix}.json"
    path, record = opened.path / "scores" / name, records if len(records) > 1 else records[0]
    save_scores(options.output or path, "scores", record, bool(options.output))


def run_fill(options: argparse.Namespace) -> None:
    """Runs the command `fill`: prints the most probable words for each [MASK] in texts or stdin."""
    problem = f"which cannot fill {MASK}: give an encoder with a masked language model head"
    model = open_model(options, Filling, problem, options.lower_case)
    for text in options.text or decoded(sys.stdin.buffer):
        try:
            answer = model.predict(text, top=options.top)
        except TextError as error:
            raise UserError(f"{text[:60]!r}: {error.reason}") from error
        if options.json:
            print(json_line(answer), end="")
            continue
        print(text)
        for words, probabilities in zip(answer["words"], answer["probabilities"], strict=True):
            pairs = zip(words, probabilities, strict=True)
            print("   " + "  ".join(f"{word} {probability:.1%}" for word, probability in pairs))
