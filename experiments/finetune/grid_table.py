"""The table of a grid: rows of models, columns of tasks."""

import json
import pathlib
import statistics

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.io.paths import write_aside

JSON, MARKDOWN = "grid.json", "grid.md"
_CHOICES = ("learning_rate", "batch_size", "epochs")


def write(record: dict, out: pathlib.Path) -> None:
    """Writes OUT/grid.json and OUT/grid.md.

    Args:
        record: what `grid` gathered: "command", "tasks", "models", "planned", "runs",
            "baselines".
        out: the folder.

    Raises:
        UserError: it cannot be written.
    """
    full = {**record, "combinations": combinations(record["runs"])}
    write_aside(out / JSON, (json.dumps(full, indent=1) + "\n").encode())
    write_aside(out / MARKDOWN, markdown(record).encode())


def combinations(runs: list[dict]) -> list[dict]:
    """Seeds put together: a line for each model, task and choice of settings, best first.

    Args:
        runs: a record a run.

    Returns:
        For each: the settings, "mean" and "deviation" (of the sample) over the seeds with a score,
        "diverged", how many stopped for NaN or never had a finite output, and "runs". A
        combination of which some diverged comes after those of which none did.
    """
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        key = (run["model"], run["task"], *(run[choice] for choice in _CHOICES))
        groups.setdefault(key, []).append(run)
    found = []
    for (model, task, *choices), members in groups.items():
        scores = [run["score"] for run in members if run["score"] is not None]
        found.append(
            {
                "model": model,
                "task": task,
                **dict(zip(_CHOICES, choices, strict=True)),
                "mean": statistics.mean(scores) if scores else None,
                "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
                "diverged": sum(map(_diverged, members)),
                "runs": members,
            }
        )
    return sorted(found, key=_order)


def _diverged(run: dict) -> bool:
    return run["reason"] == "diverged" or run["score"] is None


def _order(line: dict) -> tuple:
    mean = line["mean"]
    return (line["task"], line["model"], line["diverged"], mean is None, -(mean or 0.0))


def markdown(record: dict) -> str:
    """The table and, below, every combination.

    Args:
        record: as for `write`.
    """
    tasks, models = record["tasks"], record["models"]
    lines = combinations(record["runs"])
    best = {}
    for line in lines:
        best.setdefault((line["model"], line["task"]), line)
    done, planned = len(record["runs"]), record["planned"]
    seeds = sorted({run["seed"] for run in record["runs"]})
    text = [
        "# Fine-tuning" + ("" if done == planned else f" ({done} of {planned} runs)"),
        "",
        f"`{record['command']}`",
        "",
        "Development-set scores times 100: of each model and task the combination with the best "
        f"mean over seeds ({', '.join(map(str, seeds))}), ± the sample's standard deviation.",
        "",
        f"| model | {' | '.join(tasks)} | mean |",
        f"|---|{'---|' * len(tasks)}---|",
    ]
    for model in models:
        row = [best.get((model, task)) for task in tasks]
        text.append(
            _row(model, [_cell(line) for line in row], [line and line["mean"] for line in row])
        )
    baselines = record["baselines"]
    if baselines:
        scores = [baselines.get(task, {}).get("score") for task in tasks]
        cells = ["" if score is None else f"{100 * score:.1f}" for score in scores]
        text.append(_row("baseline", cells, scores))
    text += ["", "The score is the mean of: " + "; ".join(map(_metrics, tasks)) + ".", ""]
    text += [
        "| task | model | learning rate | batch | epochs | seeds | score | metrics |",
        "|---|---|---|---|---|---|---|---|",
    ]
    text += [_line(line, line is best[line["model"], line["task"]]) for line in lines]
    return "\n".join(text) + "\n"


def _row(name: str, cells: list[str], means: list[float | None]) -> str:
    whole = all(mean is not None for mean in means)
    mean = f"{100 * statistics.mean(means):.1f}" if whole else ""
    return f"| {name} | {' | '.join(cells)} | {mean} |"


def _cell(line: dict | None) -> str:
    if line is None:
        return ""
    marked = " (diverged)" if line["diverged"] else ""
    if line["mean"] is None:
        return "diverged"
    spread = "" if line["deviation"] is None else f" ± {100 * line['deviation']:.1f}"
    return f"{100 * line['mean']:.1f}{spread}{marked}"


def _metrics(task: str) -> str:
    return f"{task} {' and '.join(get_task(task).metrics)}"


def _line(line: dict, best: bool) -> str:
    task = get_task(line["task"])
    means = []
    for name in (*task.metrics, *task.more_metrics):
        values = [run["metrics"][name] for run in line["runs"] if name in run["metrics"]]
        if values:
            means.append(f"{name} {100 * statistics.mean(values):.1f}")
    epochs = line["epochs"]
    length = f"{line['runs'][0]['max_steps']:,} steps" if epochs is None else f"{epochs:g}"
    score = _cell(line)
    return (
        f"| {line['task']} | {line['model']} | {line['learning_rate']:g} | {line['batch_size']} "
        f"| {length} | {len(line['runs'])} | {f'**{score}**' if best else score} "
        f"| {', '.join(means)} |"
    )
