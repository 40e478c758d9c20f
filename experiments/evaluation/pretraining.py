"""Evaluation of pre-training runs."""

import argparse
import dataclasses

from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.runs.pretraining import PretrainingRun, check_corpus, validation_batches
from macaron_tf.runs.run import save_scores
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import build_fit_model


def run(opened: PretrainingRun, options: argparse.Namespace) -> None:
    """Prints the validation metrics of a run on a corpus, and saves them."""
    recipe, has_memory = opened.recipe, opened.recipe.objective.has_memory
    if options.set and not has_memory:
        raise UserError(f"{opened.path} has no memory, so --set has no effect: leave --set out")
    if not options.corpus:
        raise UserError("--corpus is missing: give the folder that `macaron prepare` wrote")
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary.hash, opened.path)
    checkpoint = opened.checkpoint(options.checkpoint)
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
    prepared, trained = corpus.config.languages, recipe.corpus.languages
    if prepared != trained:
        raise UserError(
            f"{corpus.folder} has the languages {prepared}, but {opened.path} has {trained}"
        )
    recipe = recipe.changed(
        validation_batches=None,
        training=dict(accumulation_steps=1),  # otherwise each micro-batch has its own memory
    )
    with options.devices.scope():
        evaluated = dataclasses.replace(opened, recipe=recipe)
        network = evaluated.load_network(checkpoint, saved=not has_memory)
        objective = recipe.make_objective()
        model = build_fit_model(network, objective, recipe.training)
    with Progress("evaluating"):
        metrics = evaluate_model(model, validation_batches(recipe, corpus, objective))
    memory, suffix = {}, ""
    if has_memory:
        length, clamp = recipe.objective.memory_length, recipe.model_config().clamp_length
        memory = {"memory": length, "clamp": clamp}
        suffix = f"-memory-{length}" + (f"-clamp-{clamp}" if clamp else "")
        print(f"{'memory':24} {length}")
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    name = f"{corpus.fingerprint[:8]}-{checkpoint.name}{suffix}"
    record = {"corpus": str(options.corpus), "fingerprint": corpus.fingerprint, "rows": rows}
    record |= memory | metrics
    save_scores(options.output, opened.path, name, checkpoint.name, **record)
