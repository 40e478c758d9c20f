"""Evaluation of pre-training runs, ELMos and sequence models on their held-out data."""

import argparse
import dataclasses

from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.runs.elmo import read_rows
from macaron_tf.runs.pretraining import check_corpus, validation_batches
from macaron_tf.runs.run import Run, metrics_line, save_scores
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import TrainedModel, build_fit_model


def _open(opened: Run, options: argparse.Namespace, saved: bool = True) -> tuple[str, TrainedModel]:
    """Returns the name of the checkpoint, and its network with the objective of the training."""
    checkpoint = opened.checkpoint(options.checkpoint)
    training = dataclasses.replace(opened.recipe.training, ema_decay=None)
    with options.devices.scope():
        network = opened.load_network(checkpoint, saved)
        if not saved:
            opened.recipe.adapt(network)
        return checkpoint.name, build_fit_model(network, opened.recipe.make_objective(), training)


def pretraining(opened: Run, options: argparse.Namespace) -> None:
    """Evaluates a checkpoint on the validation rows of a corpus."""
    recipe, has_memory = opened.recipe, opened.recipe.objective.has_memory
    if options.set and not has_memory:
        raise UserError(f"{opened.path} has no memory, so --set has no effect: leave --set out")
    corpus = PretrainingCorpus.open(options.corpus or opened.data_record()["corpus"])
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary.hash, opened.path)
    rows = corpus.rows("validation")
    if has_memory:
        # The rows may have another length than in training, because the memory holds earlier text.
        batch_size = min(recipe.data.batch_size, rows)
        recipe = recipe.changed(data={**corpus.config.get_config(), "batch_size": batch_size})
        if remainder := rows % batch_size:
            rows -= remainder
            print(
                f"the last {remainder:,} row(s) are not evaluated, because the {batch_size} texts "
                "of a batch need equal lengths"
            )
    check_corpus(recipe, corpus, any_pairs=True)
    prepared, trained = corpus.config.languages, recipe.data.languages
    if prepared != trained:
        raise UserError(f"{corpus.folder} has the languages {prepared}, the run has {trained}")
    # Several micro-batches would each have their own memory.
    recipe = recipe.changed(data=dict(validation_batches=None), training=dict(accumulation_steps=1))
    evaluated = dataclasses.replace(opened, recipe=recipe)
    checkpoint, model = _open(evaluated, options, saved=not has_memory)
    with Progress("evaluating"):
        metrics = evaluate_model(model, validation_batches(recipe, corpus, model.objective))
    record = {"corpus": str(corpus.folder), "fingerprint": corpus.fingerprint, "rows": rows}
    if has_memory:
        length, clamp = recipe.objective.memory_length, recipe.model_config().clamp_length
        record |= {"memory": length, "clamp": clamp}
        print(f"{'memory':24} {length}")
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    subject = f"{corpus.folder}-{checkpoint}"
    save_scores(options.output, opened.path, subject, checkpoint, **record, **metrics)


def words(opened: Run, options: argparse.Namespace) -> None:
    """Evaluates a checkpoint on the held-out documents."""
    rows, held_out, _ = read_rows(opened.recipe, opened.vocabulary, options.tfds)
    opened.check_data(rows.fingerprint())
    name, model = _open(opened, options)
    metrics = evaluate_model(model, held_out.evaluation_dataset())
    print("\n".join(f"{metric:12} {value}" for metric, value in metrics.items()))
    save_scores(options.output, opened.path, name, name, **metrics)


def sequences(opened: Run, options: argparse.Namespace) -> None:
    """Evaluates a checkpoint on the validation split and on the test split, if there is one."""
    from macaron_tf.runs.sequences import TASKS, task_metrics  # needs SciPy

    data = TASKS[opened.recipe.task.name].read_data(opened.recipe, options.tfds)
    if data.fingerprint:
        opened.check_data(data.fingerprint)
    name, model = _open(opened, options)
    record = {}
    for split, dataset in (("validation", data.validation), ("test", data.test)):
        if dataset is not None:
            record[split] = task_metrics(model, dataset)
            print(f"{split:12} {metrics_line(record[split])}")
    save_scores(options.output, opened.path, name, name, **record)
