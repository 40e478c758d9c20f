"""The figures and tables of the SwishRNN paper: each trains its missing runs, then writes them."""

import argparse
import collections
import functools
import itertools
import pathlib
import statistics

from experiments import studies
from experiments.finetune.grid import metric_values
from experiments.finetune.run import TABLE_METRICS
from macaron_tf.errors import UserError
from macaron_tf.training.progress import TRAIN, read_lines


def step_sizes(options: argparse.Namespace) -> None:
    """`swish_rnn step-sizes`: scores and time by the step size of the recurrence (table 2)."""
    out = pathlib.Path(options.out)
    arms = {options.reference: studies.Arm(options.reference, options.reference, ())}
    for sizes in options.sizes:
        if not all(part.isdecimal() and int(part) for part in sizes.split(",")):
            raise UserError(f"--sizes {sizes}: give whole numbers of 1 or more, such as 1,2,4")
        settings = (f"model.rnn_step_sizes=({sizes},)",)
        name = f"k{sizes.replace(',', '-')}"
        arms[f"k={sizes}"] = studies.Arm(name, options.recipe, settings)

    def train(
        arm: studies.Arm, seed: int, run: pathlib.Path, log: pathlib.Path | None
    ) -> tuple[pathlib.Path, list[dict]]:
        settings = [*options.set, *arm.settings, f"training.seed={seed}"]
        return run, studies.pretrained(arm.recipe, run, options.corpus, settings, log)

    trained = studies.by_seed(list(arms.values()), options.seeds, options.jobs, out, train)
    tuned = {
        f"{path.name} fine-tuned": functools.partial(_best_scores, path, options)
        for path, _ in trained.values()
    }
    scored = dict(zip(trained, studies.at_once(options.jobs, tuned), strict=True))
    rows = []
    for name, arm in arms.items():
        for seed in options.seeds:
            path, curve = trained[arm.name, seed]
            spans = [each for each in read_lines(path / "timing.jsonl") if each["kind"] == TRAIN]
            speeds = studies.values(spans, "tokens_per_second")
            rows.append(
                {
                    "name": name,
                    "seed": seed,
                    "loss": curve[-1]["loss"],
                    # The first span traces and warms up.
                    "tokens_per_second": statistics.median(speeds[1:] or speeds),
                    "scores": scored[arm.name, seed],
                }
            )
    named, speeds = studies.grouped(rows, "name"), {}
    scores = {column: {} for column in _columns(options.tasks)}
    for name, mine in named.items():
        speeds[name] = statistics.median(studies.values(mine, "tokens_per_second"))
        for column, found in scores.items():
            found[name] = [row["scores"][column] for row in mine]
    lines = [
        "Development scores times 100, mean over seeds ± deviation. Time: the reference's tokens a "
        "second over the row's, medians of runs one after another; `python -m "
        "experiments.lab.benchmarks.train_step` times the steps in turn.",
        "",
    ]
    lines += studies.table(
        ("step size", "loss", *scores, "time"),
        (
            (
                name,
                studies.mean_of(mine, "loss", 3),
                *(studies.cell(found[name], 1, 100) for found in scores.values()),
                f"{speeds[options.reference] / speeds[name]:.2f}",
            )
            for name, mine in named.items()
        ),
    )
    studies.mean_bars(scores, out / "step_sizes.png", "development score")
    title = "Step sizes of the recurrence"
    studies.write(out, "step_sizes", "lab.swish_rnn", options, title, lines, rows=rows)


def _columns(tasks: list[str]) -> dict[str, tuple[str, str]]:
    """A task and its metric by the head of a column: scores, then those of `TABLE_METRICS`."""
    other = TABLE_METRICS["swish_rnn"]
    columns = {task: (task, "score") for task in tasks}
    return columns | {
        f"{task} {other[task]}": (task, other[task]) for task in tasks if task in other
    }


def _best_scores(run: pathlib.Path, options: argparse.Namespace) -> dict[str, float]:
    """The `_columns` of the tasks fine-tuned from a run, at the learning rate of the best score."""
    out = pathlib.Path(options.out)
    words = ["--init", f"model={run}", *studies.tuning(options)]
    if options.learning_rates:
        words += ["--learning-rates", *map(repr, options.learning_rates)]
    log = out / "logs" / f"{run.name}.log" if options.jobs > 1 else None
    cells = studies.grid(options.tasks, out / "grid" / run.name, *words, log=log)
    best = {
        task: max(mine, key=lambda cell: cell["mean"] or 0.0)["runs"]
        for task, mine in studies.grouped(cells, "task").items()
    }
    return {
        column: statistics.mean(metric_values(best[task], metric) or [0.0])
        for column, (task, metric) in _columns(options.tasks).items()
    }


def stability(options: argparse.Namespace) -> None:
    """`swish_rnn stability`: the fine-tuned score against the learning rate (figure 3)."""
    out, tasks = pathlib.Path(options.out), options.tasks
    rates = {rate: repr(rate) for rate in options.learning_rates}
    choices = ["--learning-rates", *rates.values(), "--seeds", *map(str, options.seeds)]
    choices += studies.tuning(options)
    cells = studies.grid(tasks, out / "grid", "--init", *options.init, *choices)
    panels = {name: collections.defaultdict(dict) for name in [*_columns(tasks), "mean"]}
    for cell, (name, (task, metric)) in itertools.product(cells, _columns(tasks).items()):
        if task == cell["task"]:
            # A run that diverged scores 0.
            scores = [(metric_values([run], metric) or [0.0])[0] for run in cell["runs"]]
            panels[name][cell["model"]][cell["learning_rate"]] = scores
    for model, rate in itertools.product(panels[tasks[0]], rates):
        seeds = zip(*(panels[task][model][rate] for task in tasks), strict=True)
        panels["mean"][model][rate] = list(map(statistics.mean, seeds))
    lines = []
    for task, by_model in panels.items():
        for model, by_rate in by_model.items():
            means = [statistics.mean(by_rate[rate]) for rate in rates]
            shown = [studies.cell(by_rate[rate], 1, 100) for rate in rates]
            lines.append((task, model, *shown, f"{100 * (max(means) - min(means)):.1f}"))
    figure = out / "stability.png"
    studies.mean_curves(panels, figure, "learning rate", "development score", log_x=True)
    text = "Scores times 100, mean over seeds ± deviation; range = best minus worst rate's."
    report = [text, "", *studies.table(("task", "model", *rates.values(), "range"), lines)]
    title = "Score against learning rate"
    studies.write(out, "stability", "lab.swish_rnn", options, title, report, combinations=cells)
