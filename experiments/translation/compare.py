"""`translate compare`: is one system better than another, or is it chance?"""

import argparse
import json
import pathlib

from macaron_tf.errors import UserError
from macaron_tf.evaluation import TranslationMetric, paired_bootstrap


def run(options: argparse.Namespace) -> None:
    """Prints both BLEUs with intervals, their difference and its p-value."""
    first, second = _read(options.first), _read(options.second)
    if first["references"] != second["references"]:
        raise UserError(
            f"{options.first} and {options.second} were scored on different references: "
            "evaluate both runs on the same source and split"
        )
    print(
        paired_bootstrap(
            first["hypotheses"],
            second["hypotheses"],
            first["references"],
            TranslationMetric(**first["metric"]),
            resamples=options.samples,
            seed=options.seed,
        )
    )


def _read(name: str) -> dict:
    try:
        record = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
        if {"hypotheses", "references", "metric"} <= set(record):
            return record
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{name} cannot be read as scores: {error}") from error
    raise UserError(f"{name} holds no translations: give a .json that `evaluate` wrote")
