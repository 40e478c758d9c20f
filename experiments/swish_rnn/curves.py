"""`swish_rnn curves`: the masked language loss against the step (figure 4)."""

import argparse
import pathlib

from experiments.figures import mean_curves
from experiments.studies import cell, pretrained, write
from macaron_tf.training.progress import VALIDATION


def run(options: argparse.Namespace) -> None:
    """Trains what is missing, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    losses: dict[str, dict[int, list[float]]] = {}
    rows = []
    for recipe in options.recipes:
        for seed in options.seeds:
            path = out / f"{recipe}-{seed}"
            settings = [*options.set, f"training.seed={seed}"]
            lines = pretrained(recipe, path, options.corpus, settings)
            validations = [line for line in lines if line["kind"] == VALIDATION]
            for line in validations:
                losses.setdefault(recipe, {}).setdefault(line["step"], []).append(line["loss"])
            last = validations[-1]
            rows.append(
                {"recipe": recipe, "seed": seed, "run": str(path), **last, "curve": validations}
            )
    table = [
        "| recipe | seeds | validation loss | perplexity | accuracy % |",
        "|---|---|---|---|---|",
    ]
    for recipe in options.recipes:
        mine = [row for row in rows if row["recipe"] == recipe]
        table.append(
            f"| {recipe} | {len(mine)} | **{cell([row['loss'] for row in mine], 3)}** "
            f"| {cell([row['perplexity'] for row in mine], 1)} "
            f"| {cell([row['accuracy'] for row in mine], 1, 100)} |"
        )
    last_step = max(step for steps in losses.values() for step in steps)
    mean_curves({"": losses}, out / "curves.png", "updates", "validation loss, nats a token")
    title = f"Masked language loss after {last_step:,} updates"
    write(out, "curves", options, title, table, rows=rows)
