"""`swish_rnn stability`: the fine-tuned score against the learning rate (figure 3)."""

import argparse
import pathlib
import statistics

from experiments.figures import mean_curves
from experiments.studies import cell, grid, write


def run(options: argparse.Namespace) -> None:
    """Fine-tunes what is missing, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    rates = [repr(rate) for rate in options.learning_rates]
    choices = ["--learning-rates", *rates, "--seeds", *map(str, options.seeds)]
    lines = grid(options, out / "grid", "--init", *options.init, *choices)
    models = list(dict.fromkeys(line["model"] for line in lines))
    # A run that diverged counts as 0, what it is worth.
    scores = {
        (line["task"], line["model"], line["learning_rate"]): [
            run["score"] or 0.0 for run in line["runs"]
        ]
        for line in lines
    }
    panels = {
        task: {
            model: {rate: scores[task, model, rate] for rate in options.learning_rates}
            for model in models
        }
        for task in options.tasks
    }
    panels["mean"] = {
        model: {
            rate: [
                statistics.mean(by_seed)
                for by_seed in zip(
                    *(panels[task][model][rate] for task in options.tasks), strict=True
                )
            ]
            for rate in options.learning_rates
        }
        for model in models
    }
    mean_curves(panels, out / "stability.png", "learning rate", "development score", log_x=True)
    table = [
        "Scores times 100, mean over seeds ± deviation; range = best minus worst learning rate's.",
        "",
        f"| task | model | {' | '.join(rates)} | range |",
        f"|---|---|{'---|' * len(rates)}---|",
    ]
    for task, by_model in panels.items():
        for model, by_rate in by_model.items():
            means = [statistics.mean(values) for values in by_rate.values()]
            cells = " | ".join(cell(values, 1, 100) for values in by_rate.values())
            table.append(f"| {task} | {model} | {cells} | {100 * (max(means) - min(means)):.1f} |")
    title = "Score against learning rate"
    write(out, "stability", options, title, table, combinations=lines)
