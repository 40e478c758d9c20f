"""Scores fine-tuning at several learning rates (figure 3 of the SwishRNN paper, Lei et al. 2022).

    python -m experiments.lab.stability study/stability --data-dir DIR \\
        --init 'bert_rab=study/curves/bert_rab_tiny-{seed}' \\
        'swish_rnn=study/curves/swish_rnn_tiny-{seed}'

`experiments.compare` reproduces figure 4 and table 2 of the paper:

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.compare study/curves --corpus corpora/mini \\
        bert_tiny bert_rab_tiny swish_rnn_tiny macaron_bert_tiny
    python -m experiments.compare study/steps --corpus corpora/mini --data-dir DIR \\
        --tasks cola rte stsb bert_rab_tiny \\
        'k1=swish_rnn_tiny:model.rnn_step_sizes=(1,)' \\
        'k2=swish_rnn_tiny:model.rnn_step_sizes=(2,)' \\
        'k1-2-4=swish_rnn_tiny:model.rnn_step_sizes=(1, 2, 4)'

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
    panels = {name: collections.defaultdict(dict) for name in [*columns, "mean"]}
    cells = _fine_tune(options, out / "grid")
    for cell, (name, (task, metric)) in itertools.product(cells, columns.items()):
        if task == cell["task"]:
            # A run counts as 0 if no validation had a finite score.
            scores = [(metric_values([run], metric) or [0.0])[0] for run in cell["runs"]]
            panels[name][cell["model"]].setdefault(cell["learning_rate"], []).extend(scores)
    models = list(panels[options.tasks[0]])
    for model, rate in itertools.product(models, rates):
        seeds = zip(*(panels[task][model][rate] for task in options.tasks), strict=True)
        panels["mean"][model][rate] = list(map(statistics.mean, seeds))
    lines = []
    for task, scores_by_model in panels.items():
        for model, scores_by_rate in scores_by_model.items():
            cell_texts = [studies.cell(scores_by_rate[rate], 1, 100) for rate in rates]
            lines.append((task, model, *cell_texts, studies.cell(falls(scores_by_rate), 1, 100)))
    figure = out / "stability.png"
    studies.mean_curves(panels, figure, "learning rate", "development score", log_x=True)
    text = (
        "Scores times 100 (mean ± standard deviation over seeds). The fall is a model's score at "
        "its best rate minus its mean score at the other rates."
    )
    report = [text, "", *studies.table(("task", "model", *rates.values(), "fall"), lines)]
    if len(models) > 1:
        runs = {cell["task"]: cell["runs"][0]["run"] for cell in cells}
        tfds = Tfds(options.data_dir, download=False)
        chance = {task: finetuning_chance_level(run, tfds) for task, run in runs.items()}
        levels = {task: level and level[0] for task, level in chance.items()}
        report += ["", *_verdict_table(panels, levels, models), "", RULE]
    title = "Score against learning rate"
    studies.write(out, "stability", "lab.stability", options, title, report, combinations=cells)


def _fine_tune(options: argparse.Namespace, out: pathlib.Path) -> list[dict]:
    """Fine-tunes all models at all rates, and returns the combinations of the grids.

    All seeds of a grid start from the same models. If the location of a model contains `{seed}`,
    each seed therefore has a grid of its own.
    """
    for init in options.init:
        if SEED in init and "=" not in init:
            raise UserError(f"--init {init} needs a name for the report: write NAME={init}")
    separate, cells = any(SEED in init for init in options.init), []
    for seeds in [[seed] for seed in options.seeds] if separate else [options.seeds]:
        inits = [init.replace(SEED, f"{seeds[0]}") for init in options.init]
        flags = ["--learning-rates", *map(repr, options.learning_rates)]
        flags += ["--seeds", *map(str, seeds), *studies.grid_arguments(options)]
        cells += studies.grid(options.tasks, out, "--init", *inits, *flags)
    return cells


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
    learnt, rows = {}, []
    for task, model in itertools.product(levels, others):
        pair = panels[task][model], panels[task][first]
        chance = levels[task], Finetuning.margin
        if any(is_at_chance(_best(scores), True, *chance) for scores in pair):
            rows.append((task, model, *[""] * 3, "no verdict: a model is at chance level"))
        else:
            learnt[task, model] = falls(pair[0]), falls(pair[1])
    for key, verdict in judge(learnt, higher_is_better=False).items():
        rows.append((*key, *verdict_cells(Finetuning, verdict)))
    head = ("task", "model", f"fall - {first}'s", "95% interval", "p", "verdict")
    return studies.table(head, rows)


main = cli.single_program(
    "experiments.lab.stability",
    __doc__,
    "experiments.lab.stability:run",
    cli.STUDY,
    cli.path_argument(
        "--init [NAME=]FROM",
        "pre-trained models to fine-tune, such as bert=runs/bert; FROM has a form that `finetune "
        "grid --init` accepts, and NAME names the model in the report (default NAME: the name of "
        "the model's folder). {seed} in FROM is replaced by the seed of the fine-tuning run, so "
        "that each run can start from a separate pre-training run",
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
