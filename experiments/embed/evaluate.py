"""`embed evaluate`: how well cosines follow people's scores."""

import argparse
import hashlib
import json
import os
import time

import numpy as np
import tensorflow as tf

from experiments.embed.recipe import TRIPLETS, pair_task
from experiments.embed.run import SentenceEncoder, open_encoder, warn_cut
from experiments.scores import default_splits, metrics_line, write_scores
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import EncodedSentences, encode_sets
from macaron_tf.data.tasks.reading import TextSets, read_examples, read_triplets
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.evaluation.similarity import similarity_metrics, triplet_accuracy
from macaron_tf.io import paths as storage
from macaron_tf.models.siamese import SiameseEncoder

TRAIN = "train"


def read_sets(
    task: str,
    split: str,
    source: str | None = None,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> TextSets:
    """Reads a split of a task of two texts, or of triplets.

    Args:
        task: a task's name, or "triplets".
        split, source, data_dir, download: as for `read_examples` and `read_triplets`.

    Raises:
        UserError: as those two; triplets without a source; labels that are secret.
    """
    if task == TRIPLETS:
        if not source:
            raise UserError(f"{TRIPLETS} have no data of their own: give --source tsv:FILE")
        return read_triplets(source, split)
    described = get_task(task)
    examples = read_examples(described, split, data_dir, download, source)
    if examples.labels is None:
        raise UserError(
            f"the labels of split {split!r} of {source or described.source} are secret: take a "
            "split that has them"
        )
    return TextSets((examples.first, examples.second), examples.labels)


def validation_split(task: str) -> str:
    """The development set that decides, of a task or of triplets."""
    return "validation" if task == TRIPLETS else get_task(task).validation_splits[0]


def check_scored(task: str, network: SiameseEncoder) -> None:
    """Refuses a task that the network's vectors cannot be judged by.

    Args:
        task: a task's name, or "triplets".
        network: the encoder; its classifier, where it has one, judges classes.

    Raises:
        UserError: a task of other classes than the network was trained on, or not of pairs.
    """
    described = None if task == TRIPLETS else pair_task(task)
    if described and not described.regression and network.num_classes != described.num_classes:
        raise UserError(
            f"{task} has {described.num_classes} classes, and this encoder was trained on "
            f"{network.num_classes or 'none'}: give --task stsb, which is scored by the cosine"
        )


def measure(
    task: str, network: SiameseEncoder, vectors: np.ndarray, labels: np.ndarray | None
) -> dict[str, float]:
    """Metrics of vectors.

    Args:
        task: a task's name, or "triplets"; see `check_scored`.
        network: its classifier decides classes.
        vectors: (N, S, D).
        labels: (N,); None for triplets.

    Returns:
        "spearman" and "pearson" of cosines against scores, the task's metrics of classes, or the
        "accuracy" of triplets; NaN where vectors are not finite.
    """
    if task == TRIPLETS:
        return {"accuracy": triplet_accuracy(*np.moveaxis(vectors, 1, 0))}  # (N, S, D) -> (S, N, D)
    described = get_task(task)
    if described.regression:
        return similarity_metrics(vectors[:, 0], vectors[:, 1], labels)
    logits = network.pair_logits(tf.constant(vectors[:, 0]), tf.constant(vectors[:, 1]))  # (N, C)
    found = tf.cast(logits, tf.float32).numpy()
    finite = bool(np.isfinite(found).all())
    # The argmax of a diverged model would score like the first class.
    metrics = score(described, decide(described, found if finite else np.zeros_like(found)), labels)
    return metrics if finite else dict.fromkeys(metrics, float("nan"))


def vectors_of(encoder: SentenceEncoder, data: EncodedSentences) -> np.ndarray:
    """Vectors `(N, S, D)` of N tokenized examples of S sentences, by the current weights."""
    # (N S, D) -> (N, S, D)
    return encoder.of_rows(data.rows).reshape(-1, data.count, encoder.width)


def run(options: argparse.Namespace) -> None:
    """Encodes, scores, prints, and writes the metrics of a run into its folder."""
    with options.devices.scope():
        encoder, opened = open_encoder(
            options.encoder, options.pooling, options.max_length, options.lower_case
        )
    task = options.task or (opened.recipe.task if opened else "stsb")
    check_scored(task, encoder.network)
    source = options.source
    if source is None and opened and task == opened.recipe.task:
        source = opened.recipe.source
    if source is None and task != TRIPLETS:
        source = get_task(task).source
    split = options.split or default_splits(source, [validation_split(task)])[0]
    sets = read_sets(task, split, source, options.data_dir, options.download)
    began = time.monotonic()
    data = encode_sets(encoder.vocabulary, sets, encoder.max_length)
    warn_cut(data.cut, len(data.rows.lengths), encoder.max_length)
    metrics = measure(task, encoder.network, vectors_of(encoder, data), data.labels)
    seconds = time.monotonic() - began
    print(metrics_line(metrics))
    sentences = len(data.rows.lengths)
    print(
        f"{len(sets):,} examples of {task}, {split}; {encoder.network.pooling} pooling; "
        f"{sentences:,} sentences in {seconds:.1f} s, {sentences / seconds:,.0f} a second"
    )
    folder = options.output or (opened and opened.path / "scores")
    if not folder:
        return
    record = {
        "encoder": options.encoder,
        "task": task,
        "source": source,
        "split": split,
        "pooling": encoder.network.pooling,
        "max_length": encoder.max_length,
        "examples": len(sets),
        "seconds": round(seconds, 2),
        "metrics": metrics,
    }
    digest = hashlib.sha256(f"{encoder.identity()} {json.dumps(sets.texts)}".encode())
    subject, ending = f"{task}-{source}-{split}", digest.hexdigest()[:8]
    path = write_scores(storage.as_path(folder), subject, ending, record)
    print(f"metrics: {path}")
