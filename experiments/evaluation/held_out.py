"""Evaluation of ELMos and sequence models on their held-out data."""

import argparse
import dataclasses

from macaron_tf.runs.elmo import ElmoRun, read_rows
from macaron_tf.runs.run import Run, metrics_line, save_scores
from macaron_tf.runs.sequences.run import SequenceRun, task_metrics
from macaron_tf.runs.sequences.tasks import TASKS
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.training import TrainedModel, build_fit_model


def _open(opened: Run, options: argparse.Namespace) -> tuple[str, TrainedModel]:
    """Returns the name of the checkpoint, and its network with the objective of the training."""
    checkpoint = opened.checkpoint(options.checkpoint)
    training = dataclasses.replace(opened.recipe.training, ema_decay=None)
    with options.devices.scope():
        network = opened.load_network(checkpoint)
        return checkpoint.name, build_fit_model(network, opened.recipe.make_objective(), training)


def words(opened: ElmoRun, options: argparse.Namespace) -> None:
    """Evaluates a checkpoint on the held-out documents."""
    rows, held_out, _ = read_rows(opened.recipe, opened.vocabulary, options.tfds)
    opened.check_data(rows.fingerprint())
    name, model = _open(opened, options)
    metrics = evaluate_model(model, held_out.evaluation_dataset())
    print("\n".join(f"{metric:12} {value}" for metric, value in metrics.items()))
    save_scores(options.output, opened.path, name, name, **metrics)


def sequences(opened: SequenceRun, options: argparse.Namespace) -> None:
    """Evaluates a checkpoint on the validation split and on the test split, if there is one."""
    data = TASKS[opened.recipe.task].read_data(opened.recipe, options.tfds)
    if data.fingerprint:
        opened.check_data(data.fingerprint)
    name, model = _open(dataclasses.replace(opened, vocab_size=data.vocab_size), options)
    record = {}
    for split, dataset in (("validation", data.validation), ("test", data.test)):
        if dataset is not None:
            record[split] = task_metrics(model, dataset)
            print(f"{split:12} {metrics_line(record[split])}")
    save_scores(options.output, opened.path, name, name, **record)
