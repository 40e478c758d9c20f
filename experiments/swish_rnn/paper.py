"""The figures and tables of the SwishRNN paper: each trains its missing runs, then writes them."""

import argparse
import collections
import functools
import itertools
import pathlib
import statistics

import scipy.stats

from experiments import studies
from experiments.finetune.grid import metric_values
from experiments.finetune.run import TABLE_METRICS
from experiments.pretrain.run import PretrainingRun
from macaron_tf.errors import UserError
from macaron_tf.training.progress import TRAIN, read_lines


def curves(options: argparse.Namespace) -> None:
    """`swish_rnn curves`: the loss of pre-training against the step (figure 4)."""
    out, rows = pathlib.Path(options.out), []
    arms = [studies.Arm.parse(text) for text in options.recipes]
    if len({arm.name for arm in arms}) < len(arms):
        raise UserError("--recipes: two have one name: give NAME=RECIPE:PATH=VALUE")
    trained = _trained(arms, options)
    for arm, seed in itertools.product(arms, options.seeds):
        path, curve = trained[arm.name, seed]
        row = {"recipe": arm.name, "seed": seed, "run": str(path), "settings": arm.settings}
        row |= {"parameters": _parameters(path), "seconds": _timing(path)[-1]["seconds"]}
        rows.append({**row, **curve[-1], "curve": curve})
    by_arm = studies.grouped(rows, "recipe")
    first = studies.values(by_arm[arms[0].name], "loss")
    lines = []
    for name, mine in by_arm.items():
        losses = studies.values(mine, "loss")
        lines.append(
            (
                name,
                f"{mine[0]['parameters']:,}",
                f"{statistics.median(studies.values(mine, 'seconds')) / 60:.1f}",
                f"**{studies.cell(losses, 3)}**",
                studies.mean_of(mine, "perplexity", 1),
                studies.mean_of(mine, "accuracy", 1, 100),
                *_paired(losses, first),
            )
        )
    against = f"- {arms[0].name}"
    head = ("recipe", "parameters", "minutes", "validation loss", "perplexity", "accuracy %")
    table = studies.table((*head, against, "p"), lines)
    settings = [f"- {arm.name}: {arm.recipe}, {', '.join(arm.settings)}" for arm in arms]
    table += [
        "",
        f"{len(options.seeds)} seeds, mean ± the sample's deviation; minutes are the median, "
        f"{options.jobs} at once. "
        f"{against}: the difference of losses, seed by seed, with the p of a paired t-test.",
        "",
        *settings,
    ]
    losses = studies.curves(rows, "recipe", "step", "loss")
    label = "validation loss, nats a token"
    studies.mean_curves({"": losses}, out / "curves.png", "updates", label)
    title = f"Loss of pre-training after {max(row['step'] for row in rows):,} updates"
    studies.write(out, "curves", "swish_rnn", options, title, table, rows=rows)


def _trained(
    arms: list[studies.Arm], options: argparse.Namespace
) -> dict[tuple[str, int], tuple[pathlib.Path, list[dict]]]:
    """The folder and the validations of each arm's run with each seed, pre-trained if need be."""
    out, tasks = pathlib.Path(options.out), {}
    # Seed by seed: an interrupted study has every arm with the first seeds.
    for seed, arm in itertools.product(options.seeds, arms):
        path, log = out / f"{arm.name}-{seed}", out / "logs" / f"{arm.name}-{seed}.log"
        settings = [*options.set, *arm.settings, f"training.seed={seed}"]
        work = (arm.recipe, path, options.corpus, settings, log if options.jobs > 1 else None)
        tasks[arm.name, seed] = functools.partial(studies.pretrained, *work)
    named = {f"{name}, seed {seed}": task for (name, seed), task in tasks.items()}
    curves = dict(zip(tasks, studies.at_once(options.jobs, named), strict=True))
    return {key: (out / f"{key[0]}-{key[1]}", curve) for key, curve in curves.items()}


def _timing(run: pathlib.Path) -> list[dict]:
    """The speeds of a run's spans of updates."""
    return [line for line in read_lines(run / "timing.jsonl") if line["kind"] == TRAIN]


def _parameters(run: pathlib.Path) -> int:
    """The number of a run's weights."""
    return PretrainingRun.open(run).build_network().count_params()


def _paired(losses: list[float], others: list[float]) -> tuple[str, str]:
    """The mean difference from the first arm's losses of the same seeds, and its p."""
    if losses == others or len(losses) < 2:  # the first arm itself, or a single seed
        return "", ""
    differences = [a - b for a, b in zip(losses, others, strict=True)]
    p = scipy.stats.ttest_rel(losses, others).pvalue
    return f"{statistics.mean(differences):+.3f}", f"{p:.3f}"


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
    trained = _trained(list(arms.values()), options)
    tuned = {
        f"{path.name} fine-tuned": functools.partial(_best_scores, path, options)
        for path, _ in trained.values()
    }
    scored = dict(zip(trained, studies.at_once(options.jobs, tuned), strict=True))
    rows = []
    for name, arm in arms.items():
        for seed in options.seeds:
            path, curve = trained[arm.name, seed]
            speeds = studies.values(_timing(path), "tokens_per_second")
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
        "experiments.benchmarks.train_step` times the steps in turn.",
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
    studies.write(out, "step_sizes", "swish_rnn", options, title, lines, rows=rows)


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
    words = ["--init", f"model={run}"]
    if options.learning_rates:
        words += ["--learning-rates", *map(repr, options.learning_rates)]
    log = out / "logs" / f"{run.name}.log" if options.jobs > 1 else None
    cells = studies.grid(options.tasks, options, out / "grid" / run.name, *words, log=log)
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
    cells = studies.grid(tasks, options, out / "grid", "--init", *options.init, *choices)
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
    studies.write(out, "stability", "swish_rnn", options, title, report, combinations=cells)
