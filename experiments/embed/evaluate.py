"""`embed evaluate`: metrics of vectors, such as the correlation of cosines with people's scores."""

import argparse
import os
import time

import numpy as np
import tensorflow as tf

from experiments.embed.recipe import TRIPLETS, pair_task
from experiments.embed.run import encoder_of, warn_cut
from experiments.finetune.kinds import kind_of
from experiments.scores import default_splits, metrics_line, write_scores
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.data.tasks.reading import Examples, read_triplets
from macaron_tf.errors import UserError
from macaron_tf.evaluation.similarity import similarity_metrics, triplet_accuracy
from macaron_tf.models.siamese import SiameseEncoder


def read_sets(
    task: Task,
    split: str,
    source: str | None = None,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> Examples:
    """Reads a split of a task of two texts, or of triplets; arguments as for `read_examples`."""
    if task is TRIPLETS:
        if not source:
            raise UserError(f"{task.name} have no data of their own: give --source tsv:FILE")
        return read_triplets(source, split)
    return kind_of(task).read(split, data_dir, download, source)


def measure(
    task: Task, network: SiameseEncoder, vectors: np.ndarray, labels: np.ndarray | None
) -> dict[str, float]:
    """Metrics of vectors.

    Args:
        network: its classifier decides classes.
        vectors: (N, S, D).
        labels: (N,); None for triplets.

    Returns:
        "spearman" and "pearson" of cosines against scores, the task's metrics of classes, or the
        "accuracy" of triplets; NaN where vectors are not finite.
    """
    if task is TRIPLETS:
        return {"accuracy": triplet_accuracy(*np.moveaxis(vectors, 1, 0))}  # (N, S, D) -> (S, N, D)
    if task.regression:
        return similarity_metrics(vectors[:, 0], vectors[:, 1], labels)
    logits = network.pair_logits(tf.constant(vectors[:, 0]), tf.constant(vectors[:, 1]))  # (N, C)
    return kind_of(task).measure(tf.cast(logits, tf.float32).numpy(), Examples((), labels))


def run(options: argparse.Namespace) -> None:
    """Encodes, scores, prints, and writes the metrics of a run into its folder."""
    encoder, opened = encoder_of(options)
    name = options.task or (opened.recipe.task if opened else "stsb")
    task, classes = pair_task(name), encoder.network.num_classes
    if task.kind == "classification" and not task.regression and classes != task.num_classes:
        raise UserError(
            f"{name} has {task.num_classes} classes, and this encoder was trained on "
            f"{classes or 'none'}: give --task stsb, which is scored by the cosine"
        )
    own = opened.recipe.source if opened and name == opened.recipe.task else task.source
    source = options.source or own
    split = options.split or default_splits(source, [*task.validation_splits])[0]
    sets = read_sets(task, split, source, options.data_dir, options.download)
    began = time.monotonic()
    data = encode_sets(encoder.vocabulary, sets, encoder.max_length)
    sentences = len(data.rows.lengths)
    warn_cut(data.cut, sentences, encoder.max_length)
    metrics = measure(task, encoder.network, encoder.of_sets(data), data.labels)
    seconds = time.monotonic() - began
    print(metrics_line(metrics))
    print(
        f"{len(sets):,} examples of {name}, {split}; {encoder.network.pooling} pooling; "
        f"{sentences:,} sentences in {seconds:.1f} s, {sentences / seconds:,.0f} a second"
    )
    folder = options.output or (opened and opened.path / "scores")
    if not folder:
        return
    record = {
        "encoder": options.encoder,
        "task": name,
        "source": source,
        "split": split,
        "pooling": encoder.network.pooling,
        "max_length": encoder.max_length,
        "examples": len(sets),
        "seconds": round(seconds, 2),
        "metrics": metrics,
    }
    identity = [encoder.identity(), sets.texts]
    write_scores(folder, "metrics", f"{name}-{source}-{split}", "", identity, record)
