"""The table and the figure of `slides encoders`."""

import argparse
import pathlib

from experiments import studies
from experiments.figures import mean_bars
from experiments.slides import sentences
from macaron_tf.training.progress import VALIDATION, read_lines

# What else a system learns, and what the table calls it.
_BESIDES = {
    "pair_accuracy": "pairs right",
    "span_boundary_loss": "boundary loss",
    "replaced_recall": "replaced found",
    "replaced_precision": "of those said",
}
# Accuracies on each kind of pairs.
CROSSED = {"next_sentence": "next sentences", "sentence_order": "order of sentences"}


def row(system: str, seed: int, run: pathlib.Path, more: dict[str, float | None]) -> dict:
    """A run's last validation and its scores.

    Args:
        system, seed: the run's.
        run: its folder.
        more: metrics that its own file does not hold: fine-tuned scores by task, accuracies on
            the `CROSSED` pairs.
    """
    validations = [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == VALIDATION]
    return {"system": system, "seed": seed, **validations[-1], **more}


def write(options: argparse.Namespace, out: pathlib.Path, rows: list[dict]) -> None:
    """Writes OUT/encoders.md, .json and .png.

    Args:
        options: of the command.
        out: the folder.
        rows: of `row`.
    """
    names = list(dict.fromkeys(one["system"] for one in rows))
    bars = {task: {name: _values(rows, name, task) for name in names} for task in options.tasks}
    mean_bars(bars, out / "encoders.png", "score on the development set")
    title = f"The slides' encoders after {max(one['step'] for one in rows):,} updates"
    table = [*_systems(rows, names, options.tasks), "", *_pairs(rows, names)]
    studies.write(out, "encoders", options, title, table, script="slides", rows=rows)


def _values(rows: list[dict], name: str, metric: str) -> list[float]:
    found = [one.get(metric) for one in rows if one["system"] == name]
    return [value for value in found if value is not None]


def _systems(rows: list[dict], names: list[str], tasks: list[str]) -> list[str]:
    kinds = (sentences.UNTRAINED, sentences.TRAINED)
    scores = [*tasks, *(kind for kind in kinds if any(kind in one for one in rows))]
    head = ["system", "seeds", "loss of tokens", "right %", "besides", *scores]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in names:
        besides = [
            f"{label} {studies.cell(_values(rows, name, metric), 2)}"
            for metric, label in _BESIDES.items()
            if _values(rows, name, metric)
        ]
        cells = [
            name,
            str(sum(one["system"] == name for one in rows)),
            studies.cell(_values(rows, name, "nll"), 2),
            studies.cell(_values(rows, name, "accuracy"), 1, 100),
            ", ".join(besides) or "-",
            *(studies.cell(_values(rows, name, task), 1, 100) for task in scores),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _pairs(rows: list[dict], names: list[str]) -> list[str]:
    """How well each model of pairs tells both kinds of pairs, as ALBERT's table has it."""
    crossed = [name for name in names if any(_values(rows, name, kind) for kind in CROSSED)]
    if not crossed:
        return []
    lines = [
        "Pairs told right, %, by models that learnt the one kind or the other:",
        "",
        f"| system | {' | '.join(CROSSED.values())} |",
        "|---|---|---|",
    ]
    for name in crossed:
        cells = [studies.cell(_values(rows, name, kind), 1, 100) for kind in CROSSED]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines
