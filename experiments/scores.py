"""Scores of a run on a split: as a line, and as a JSON file named after the source."""

import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from experiments.run import write_json
from macaron_tf.data.sources.names import Source


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Metrics in a line, such as "score 0.9123  accuracy 0.9123"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def default_splits(source: str | None, splits: list[str]) -> list[str]:
    """The splits that a source is scored on; "all" for a file that is not cut into splits."""
    return splits if not source or Source.of(source).has_splits else ["all"]


def write_scores(folder: epath.Path, subject: str, ending: str, record: dict[str, Any]) -> str:
    """Writes scores and returns the path of their file.

    Args:
        subject: the source and splits; the file's name takes the last 100 characters.
        ending: of the name: the other settings that the scores depend on.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", subject)[-100:].strip("-.")
    path = folder / f"{words}-{ending}.json"
    write_json(path, record)
    return str(path)
