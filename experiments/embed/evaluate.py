"""`embed evaluate`: how well cosines follow people's scores."""

import argparse
import hashlib
import json
import re
import time

from experiments.embed.data import read_sets, validation_split
from experiments.embed.recipe import TRIPLETS
from experiments.embed.scoring import check_scored, measure, vectors_of
from experiments.embed.sentence_encoder import warn_cut
from experiments.embed.start import open_encoder
from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.io import paths as storage


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
    whole = bool(source) and not Source.of(source).has_splits
    split = options.split or ("all" if whole else validation_split(task))
    sets = read_sets(task, split, source, options.data_dir, options.download)
    began = time.monotonic()
    data = encode_sets(encoder.vocabulary, sets, encoder.max_length)
    warn_cut(data.cut, len(data.rows.lengths), encoder.max_length)
    metrics = measure(task, encoder.network, vectors_of(encoder, data), data.labels)
    seconds = time.monotonic() - began
    print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
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
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{task}-{source}-{split}")[-100:].strip("-.")
    path = storage.as_path(folder) / f"{words}-{digest.hexdigest()[:8]}.json"
    storage.write_aside(path, (json.dumps(record, indent=1) + "\n").encode())
    print(f"metrics: {path}")
