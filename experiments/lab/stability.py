"""Scores fine-tuning at several learning rates (figure 3 of the SwishRNN paper, Lei et al. 2022).

    python -m experiments.lab.stability study/stability --data-dir DIR \\
        --init study/curves/bert_rab_tiny-1 study/curves/swish_rnn_tiny-1

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
the score of every run to OUT/stability.json, and a figure to OUT/stability.png. To resume an
interrupted command, run the same command again.
"""

import argparse
import collections
import itertools
import pathlib
import statistics

from experiments import command_line as cli
from experiments import studies
from experiments.compare.trainers import tuned_columns
from experiments.finetune.grid import metric_values


def run(options: argparse.Namespace) -> None:
    """Runs the command: fine-tunes by `finetune grid`, and writes the table and the figure."""
    out, columns = pathlib.Path(options.out), tuned_columns(options.tasks)
    rates = {rate: repr(rate) for rate in options.learning_rates}
    flags = ["--learning-rates", *rates.values(), "--seeds", *map(str, options.seeds)]
    flags += studies.grid_arguments(options)
    cells = studies.grid(options.tasks, out / "grid", "--init", *options.init, *flags)
    panels = {name: collections.defaultdict(dict) for name in [*columns, "mean"]}
    for cell, (name, (task, metric)) in itertools.product(cells, columns.items()):
        if task == cell["task"]:
            # A run counts as 0 if no validation had a finite score.
            scores = [(metric_values([run], metric) or [0.0])[0] for run in cell["runs"]]
            panels[name][cell["model"]][cell["learning_rate"]] = scores
    for model, rate in itertools.product(panels[options.tasks[0]], rates):
        seeds = zip(*(panels[task][model][rate] for task in options.tasks), strict=True)
        panels["mean"][model][rate] = list(map(statistics.mean, seeds))
    lines = []
    for task, scores_by_model in panels.items():
        for model, scores_by_rate in scores_by_model.items():
            means = [statistics.mean(scores_by_rate[rate]) for rate in rates]
            scores_of_rates = [studies.cell(scores_by_rate[rate], 1, 100) for rate in rates]
            lines.append((task, model, *scores_of_rates, f"{100 * (max(means) - min(means)):.1f}"))
    figure = out / "stability.png"
    studies.mean_curves(panels, figure, "learning rate", "development score", log_x=True)
    text = (
        "Scores times 100 (mean ± standard deviation over seeds). The range is the difference "
        "between the best and the worst mean of a row."
    )
    report = [text, "", *studies.table(("task", "model", *rates.values(), "range"), lines)]
    title = "Score against learning rate"
    studies.write(out, "stability", "lab.stability", options, title, report, combinations=cells)


main = cli.single_program(
    "experiments.lab.stability",
    __doc__,
    "experiments.lab.stability:run",
    cli.STUDY,
    cli.path_argument(
        "--init [NAME=]FROM",
        "pre-trained models to fine-tune, such as bert=runs/bert; FROM has a form that `finetune "
        "grid --init` accepts, and NAME names the model in the report (default NAME: the name of "
        "the model's folder)",
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
