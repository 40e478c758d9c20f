"""The table and the figure of a task."""

import argparse
import pathlib
import statistics

from experiments.figures import mean_curves
from experiments.studies import write as write_study
from experiments.tcn.tasks import Task
from macaron_tf.training.progress import VALIDATION, read_lines


def write(options: argparse.Namespace, out: pathlib.Path, task: Task, rows: list[dict]) -> None:
    """Writes OUT/TASK.md, .json and .png.

    Args:
        options: with `task` and `arguments`, the command's own words.
        out: the folder.
        task: what is measured.
        rows: see `train.train_one`.
    """
    lines = table(task, rows)
    if all(row["test"] is None for row in rows):
        lines += ["", "The data have no test split: the validation's best is all that is shown."]
    write_study(out, options.task, options, task.title, lines, "tcn", rows=rows)
    curves(task, rows, out / f"{options.task}.png")


def table(task: Task, rows: list[dict]) -> list[str]:
    """Lines of Markdown: a model a row, its mean over the seeds.

    Args:
        task: what is measured.
        rows: see `train.train_one`.
    """
    lines = [
        f"{task.unit}; the best checkpoint by the validation.",
        "",
        "| model | parameters | widths | validation | test | slide | updates | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        first = mine[0]
        cells = [
            model,
            f"{first['parameters']:,}",
            _widths(first["widths"]),
            _cell(task, [row["validation"] for row in mine]),
            _cell(task, [row["test"] for row in mine if row["test"] is not None]),
            f"{task.slide[model]:g}",
            f"{statistics.mean(row['updates'] for row in mine):,.0f}",
            f"{statistics.mean(row['minutes'] for row in mine):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def curves(task: Task, rows: list[dict], path: pathlib.Path) -> None:
    """The validation's metric against updates, a line a model."""
    lines: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        points = lines.setdefault(row["model"], {})
        for line in read_lines(pathlib.Path(row["run"]) / "metrics.jsonl"):
            if line["kind"] == VALIDATION and line[task.metric] is not None:
                points.setdefault(line["step"], []).append(line[task.metric])
    mean_curves({task.title: lines}, path, "updates", f"validation: {task.unit}")


def _widths(widths: list[int]) -> str:
    same = len(set(widths)) == 1
    return f"{widths[0]} x {len(widths)}" if same else ", ".join(map(str, widths))


def _cell(task: Task, values: list[float]) -> str:
    if not values:
        return "-"
    scale = 100 if task.percent else 1
    mean = scale * statistics.mean(values)
    text = f"{mean:.3g}" if abs(mean) < 0.1 else f"{mean:.2f}"
    return text + (f" ± {scale * statistics.stdev(values):.2g}" if len(values) > 1 else "")
