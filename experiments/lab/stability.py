"""Scores fine-tuning at several learning rates (figure 3 of the SwishRNN paper, Lei et al. 2022).

    python -m experiments.lab.stability study/stability --data-dir DIR \\
        --init 'bert_rab=study/curves/bert_rab_tiny-{seed}' \\
        'swish_rnn=study/curves/swish_rnn_tiny-{seed}'

`macaron compare` reproduces figure 4 and table 2 of the paper:

    macaron pretrain prepare bert_tiny corpora/mini --data-dir DIR
    macaron compare study/curves --corpus corpora/mini \\
        bert_tiny bert_rab_tiny swish_rnn_tiny macaron_bert_tiny
    macaron compare study/steps bert_rab_tiny \\
        'k1=swish_rnn_tiny:model.rnn_step_sizes=(1,)' \\
        'k2=swish_rnn_tiny:model.rnn_step_sizes=(2,)' \\
        'k1-2-4=swish_rnn_tiny:model.rnn_step_sizes=(1, 2, 4)' \\
        --corpus corpora/mini --data-dir DIR --tasks cola rte stsb

`experiments.lab.stability` writes means and standard deviations over the seeds to OUT/stability.md,
the score of every run to OUT/stability.json, and a figure to OUT/stability.png. If there are
several models, it compares how far their scores fall from the best rate to the other rates. To
resume an interrupted command, run the same command again.
"""

import argparse
import collections
import itertools
import pathlib
import statistics
from typing import Any

from experiments import command_line as cli
from experiments import studies
from experiments.compare.report import verdict_cells
from experiments.compare.trainers import (
    SEED,
    Finetuning,
    finetuning_chance_level,
    tuned_columns,
)
from experiments.finetune.grid import metric_values
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.evaluation.verdict import RULE, is_at_chance, judge

_ABOUT_SCORES = (
    "Scores times 100 (mean ± standard deviation over seeds). The fall is a model's score at its "
    "best rate minus its mean score at the other rates. A run without a finite score counts as 0."
)
_ABOUT_VERDICTS = (
    "*Better* means a smaller fall. The arms are all models but the first, on each task. Only the "
    "scores at a model's best rate are compared with the chance level."
)
_ABOUT_SINGLE_RUNS = (
    "The seeds of a model without `{seed}` in its location share one pre-training run, so the "
    "verdicts hold only for that run."
)


def falls(scores_by_rate: dict[float, list[float]]) -> list[float]:
    """Returns each seed's score at the best rate minus its mean score at the other rates.

    The best rate is the rate with the highest mean score over the seeds.
    """
    best = _best(scores_by_rate)
    others = [scores for scores in scores_by_rate.values() if scores is not best]
    means = map(statistics.mean, zip(*others, strict=True))
    return [score - mean for score, mean in zip(best, means, strict=True)]


def _best(scores_by_rate: dict[float, list[float]]) -> list[float]:
    return max(scores_by_rate.values(), key=statistics.mean)


def run(options: argparse.Namespace) -> None:
    """Runs the command: fine-tunes by `finetune grid`, and writes the tables and the figure."""
    out, columns = pathlib.Path(options.out), tuned_columns(options.tasks)
    rates = {rate: repr(rate) for rate in options.learning_rates}
    if len(rates) < 2:
        raise UserError("--learning-rates has one rate: give two or more different rates")
    models, cells = _fine_tune(options, out / "grid")
    panels = {name: collections.defaultdict(dict) for name in columns}
    for cell, (name, (task, metric)) in itertools.product(cells, columns.items()):
        if task == cell["task"]:
            scores = [(metric_values([run], metric) or [0.0])[0] for run in cell["runs"]]
            panels[name][cell["model"]].setdefault(cell["learning_rate"], []).extend(scores)
    if len(options.tasks) > 1:
        panels["mean"] = collections.defaultdict(dict)
        for model, rate in itertools.product(models, rates):
            seeds = zip(*(panels[task][model][rate] for task in options.tasks), strict=True)
            panels["mean"][model][rate] = list(map(statistics.mean, seeds))
    lines = []
    for task, model in itertools.product(panels, models):
        scores_by_rate = panels[task][model]
        cell_texts = [studies.cell(scores_by_rate[rate], 1, 100) for rate in rates]
        lines.append((task, model, *cell_texts, studies.cell(falls(scores_by_rate), 1, 100)))
    figure = out / "stability.png"
    studies.mean_curves(panels, figure, "learning rate", "development score", log_x=True)
    report = [_ABOUT_SCORES, "", *studies.table(("task", "model", *rates.values(), "fall"), lines)]
    if len(models) > 1:
        runs = {cell["task"]: cell["runs"][0]["run"] for cell in cells}
        tfds = Tfds(options.data_dir, download=False)
        chance = {task: finetuning_chance_level(run, tfds) for task, run in runs.items()}
        levels = {task: level and level[0] for task, level in chance.items()}
        report += ["", *_verdict_table(panels, levels, models), "", _ABOUT_VERDICTS, "", RULE]
        if not all(SEED in init for init in options.init):
            report += ["", _ABOUT_SINGLE_RUNS]
    title = "Score against learning rate"
    studies.write(out, "stability", options, title, report, combinations=cells)


def _fine_tune(
    options: argparse.Namespace, out: pathlib.Path
) -> tuple[list[str], list[dict[str, Any]]]:
    """Fine-tunes all models at all rates.

    All seeds of a grid start from the same models. If the location of a model contains `{seed}`,
    each seed therefore has a grid of its own.

    Returns:
        The names of the models in the order of `--init`, and the combinations of all grids.
    """
    for init in options.init:
        name, equals, _ = init.partition("=")
        if SEED in init and (not equals or SEED in name):
            raise UserError(
                f"--init {init} needs one name for all seeds: write NAME=FROM, with {{seed}} in "
                "FROM alone"
            )
    is_separate = any(SEED in init for init in options.init)
    models, cells = [], []
    for seeds in [[seed] for seed in options.seeds] if is_separate else [options.seeds]:
        inits = [init.replace(SEED, f"{seeds[0]}") for init in options.init]
        flags = ["--learning-rates", *map(repr, options.learning_rates)]
        flags += ["--seeds", *map(str, seeds), *studies.grid_arguments(options)]
        folder = out / f"seed-{seeds[0]}" if is_separate else out
        record = studies.grid(options.tasks, folder, "--init", *inits, *flags)
        models, cells = record["models"], cells + record["combinations"]
    return models, cells


def _verdict_table(
    panels: dict[str, dict[str, dict[float, list[float]]]],
    levels: dict[str, float | None],
    models: list[str],
) -> list[str]:
    """Formats a table with the verdicts on the models' falls, for each task.

    A fall at chance level says nothing, so there is no verdict if a model's best scores are at
    chance level.

    Args:
        panels: nested dict that maps a task, a model and a rate to the scores of all seeds.
        levels: dict that maps a task to its chance level, or to `None` if it is unknown.
        models: names of the models. The first model is the baseline.
    """
    first, *others = models
    pairs, at_chance = {}, {}
    for task, model in itertools.product(levels, others):
        chance = True, levels[task], Finetuning.margin
        lost = [name for name in (first, model) if is_at_chance(_best(panels[task][name]), *chance)]
        if lost:
            at_chance[task, model] = f"no verdict: {' and '.join(lost)} at chance level"
        else:
            pairs[task, model] = falls(panels[task][model]), falls(panels[task][first])
    verdicts = judge(pairs, higher_is_better=False)
    rows = []
    for key in itertools.product(levels, others):
        cells = ["", "", "", at_chance[key]] if key in at_chance else None
        level = studies.cell([levels[key[0]]] if levels[key[0]] is not None else [], 1, 100)
        rows.append((*key, *(cells or verdict_cells(Finetuning, verdicts[key])), level))
    head = ("task", "model", f"fall - {first}'s", "95% interval", "p", "verdict", "chance level")
    return studies.table(head, rows)


main = cli.single_program(
    "python -m experiments.lab.stability",
    __doc__,
    "experiments.lab.stability:run",
    cli.STUDY,
    cli.path_argument(
        "--init [NAME=]FROM",
        "pre-trained models to fine-tune, such as bert=runs/bert; FROM has a form that `finetune "
        "grid --init` accepts, and NAME names the model in the report (default NAME: the name of "
        "the model's folder). {seed} in FROM is replaced by the seed of the fine-tuning run, so "
        "that each run can start from a separate pre-training run. The other models are compared "
        "with the first",
        nargs="+",
        required=True,
    ),
    cli.count(
        "--learning-rates R",
        "learning rates for fine-tuning (default: 1e-5 3e-5 1e-4 3e-4 1e-3)",
        [1e-5, 3e-5, 1e-4, 3e-4, 1e-3],
        minimum=0.0,
        nargs="+",
    ),
    cli.DATA_DIR,
    cli.finetuning("cola", "rte", "stsb"),
)

if __name__ == "__main__":
    raise SystemExit(main())
