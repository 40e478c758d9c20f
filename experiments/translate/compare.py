"""`translate compare`: is one system better than another, or is it chance?"""

import argparse
import dataclasses
import json

from macaron_tf.errors import UserError
from macaron_tf.evaluation import TranslationMetric, paired_bootstrap
from macaron_tf.io import paths as storage


def run(options: argparse.Namespace) -> None:
    """Prints both BLEUs with intervals, their difference and its p-value."""
    if options.samples < 1:
        raise UserError(f"--samples {options.samples}: give a whole number of 1 or more")
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}: give a whole number of 0 or more")
    first, second = Outputs.read(options.first), Outputs.read(options.second)
    if first.references != second.references:
        raise UserError(
            f"{options.first} and {options.second} were scored on different references: "
            "evaluate both runs on the same source and split"
        )
    if first.metric != second.metric:
        raise UserError(
            f"{options.first} was scored by {first.metric.signature} but {options.second} by "
            f"{second.metric.signature}: evaluate both runs by the same metric"
        )
    print(
        paired_bootstrap(
            first.hypotheses,
            second.hypotheses,
            first.references,
            first.metric,
            resamples=options.samples,
            seed=options.seed,
        )
    )


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What `evaluate` wrote, as far as it can be compared."""

    hypotheses: list[str]
    references: list[str]
    metric: TranslationMetric

    @classmethod
    def read(cls, name: str) -> "Outputs":
        """Reads a file that `evaluate` wrote.

        Raises:
            UserError: it is no such file.
        """
        try:
            record = json.loads(storage.as_path(name).read_bytes())
        except (*storage.FILE_ERRORS, ValueError, RecursionError) as error:
            raise UserError(f"{name} cannot be read as scores: {storage.reason(error)}") from error
        if not isinstance(record, dict) or not {"hypotheses", "references", "metric"} <= set(
            record
        ):
            raise UserError(f"{name} holds no translations: give a .json that `evaluate` wrote")
        hypotheses, references = record["hypotheses"], record["references"]
        for field, lines in (("hypotheses", hypotheses), ("references", references)):
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise UserError(f"{name}: {field!r} is no list of lines: evaluate again")
        if len(hypotheses) != len(references) or not references:
            raise UserError(
                f"{name} has {len(hypotheses)} hypotheses and {len(references)} references, "
                "not one for each: evaluate again"
            )
        return cls(hypotheses, references, _metric(name, record["metric"]))


def _metric(name: str, values) -> TranslationMetric:
    kinds = {field.name: field.type for field in dataclasses.fields(TranslationMetric)}
    settings = values.items() if isinstance(values, dict) else [("metric", values)]
    for setting, value in settings:
        if type(value) is not kinds.get(setting):
            raise UserError(
                f"{name}: the metric's {setting!r} is {value!r}, which this version does not know: "
                "evaluate again"
            )
    return TranslationMetric(**values)
