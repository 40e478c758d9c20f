"""`swish_rnn step-sizes`: scores and time by the step size of the recurrence (table 2)."""

import argparse
import pathlib
import statistics

from experiments.figures import mean_bars
from experiments.studies import cell, grid, pretrained, write
from macaron_tf.errors import UserError
from macaron_tf.training.progress import TRAIN, VALIDATION, read_lines


def run(options: argparse.Namespace) -> None:
    """Trains and fine-tunes what is missing, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    contenders = {options.reference: (options.reference, [])}
    for sizes in options.sizes:
        if not all(part.isdecimal() and int(part) for part in sizes.split(",")):
            raise UserError(f"--sizes {sizes}: give whole numbers of 1 or more, such as 1,2,4")
        setting = f"model.rnn_step_sizes=({sizes},)"
        contenders[f"k={sizes}"] = (options.recipe, [setting])
    rows = []
    for name, (recipe, settings) in contenders.items():
        for seed in options.seeds:
            path = out / f"{name.replace(',', '-')}-{seed}"
            settings_now = [*options.set, *settings, f"training.seed={seed}"]
            lines = pretrained(recipe, path, options.corpus, settings_now)
            [*_, last] = [line for line in lines if line["kind"] == VALIDATION]
            rates = [
                line["tokens_per_second"]
                for line in read_lines(path / "timing.jsonl")
                if line["kind"] == TRAIN
            ]
            # The first span traces and warms up.
            speed = statistics.median(rates[1:] or rates)
            lines = grid(options, out / "grid" / path.name, "--init", f"model={path}")
            scores = {line["task"]: line["mean"] or 0.0 for line in lines}
            rows.append(
                {
                    "name": name,
                    "seed": seed,
                    "loss": last["loss"],
                    "tokens_per_second": speed,
                    "scores": scores,
                }
            )
    reference = statistics.median(
        row["tokens_per_second"] for row in rows if row["name"] == options.reference
    )
    table = [
        "Development scores times 100, mean over seeds ± deviation. Time: the reference's tokens a "
        "second over the row's, medians of runs one after another; `python -m "
        "experiments.benchmarks.train_step` times the steps in turn.",
        "",
        f"| step size | loss | {' | '.join(options.tasks)} | time |",
        f"|---|---|{'---|' * len(options.tasks)}---|",
    ]
    bars: dict[str, dict[str, list[float]]] = {task: {} for task in options.tasks}
    for name in contenders:
        mine = [row for row in rows if row["name"] == name]
        by_task = {task: [row["scores"][task] for row in mine] for task in options.tasks}
        for task, values in by_task.items():
            bars[task][name] = values
        cells = " | ".join(cell(values, 1, 100) for values in by_task.values())
        time = reference / statistics.median(row["tokens_per_second"] for row in mine)
        loss = cell([row["loss"] for row in mine], 3)
        table.append(f"| {name} | {loss} | {cells} | {time:.2f} |")
    mean_bars(bars, out / "step_sizes.png", "development score")
    write(out, "step_sizes", options, "Step sizes of the recurrence", table, rows=rows)
