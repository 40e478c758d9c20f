"""Scores of a run on a split: as a line, and as a JSON file named after the source."""

import hashlib
import json
import os
import re
from collections.abc import Mapping

from experiments.run import write_json
from macaron_tf.data.sources.names import Source
from macaron_tf.io import paths as storage


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Metrics in a line, such as "score 0.9123  accuracy 0.9123"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def default_splits(source: str | None, splits: list[str]) -> list[str]:
    """The splits that a source is scored on; "all" for a file that is not cut into splits."""
    return splits if not source or Source.of(source).has_splits else ["all"]


def write_scores(
    folder: str | os.PathLike, what: str, subject: str, settings: str, identity, record: dict
) -> None:
    """Writes scores, and prints `what` they are and where.

    Args:
        subject: the source and splits; the file's name takes the last 100 characters.
        settings: for the name.
        identity: weights, texts and settings, as JSON has them; others have another name.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", subject)[-100:].strip("-.")
    text = json.dumps(identity, sort_keys=True, default=lambda array: array.tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = storage.as_path(folder) / f"{words}-{settings}{digest}.json"
    write_json(path, record)
    print(f"{what}: {path}")
