"""Few-shot scores as a table and figures: against K, and against model size."""

import json
import statistics
from typing import Any

from etils import epath

from experiments.figures import mean_curves
from macaron_tf.io.paths import write_aside

JSON, MARKDOWN, FIGURE, SIZES = "few_shot.json", "few_shot.md", "few_shot.png", "sizes.png"


def write(record: dict[str, Any], out: epath.Path) -> None:
    """Writes OUT/few_shot.json, few_shot.md and few_shot.png; of several sizes sizes.png too.

    Args:
        record: "settings", "baselines" by task, and "runs", of `evaluate`.
        out: the folder.

    Raises:
        UserError: it cannot be written.
    """
    write_aside(out / JSON, (json.dumps(record, indent=1) + "\n").encode())
    write_aside(out / MARKDOWN, markdown(record).encode())
    mean_curves(
        {task: _against_shots(record, task) for task in record["baselines"]},
        out / FIGURE,
        "examples asked for, K",
        "score",
    )
    if len({run["parameters"] for run in record["runs"]}) > 1:
        mean_curves(
            {task: _against_size(record, task) for task in record["baselines"]},
            out / SIZES,
            "parameters",
            "score",
            log_x=True,
        )


def markdown(record: dict[str, Any]) -> str:
    """The table: a row for each task, model and K.

    Args:
        record: as for `write`.
    """
    settings = record["settings"]
    lines = [
        "# Zero- and few-shot scores",
        "",
        f"Scores in percent, mean ± standard deviation over seeds of the examples; answers by "
        f"log-likelihood ({settings['normalization']}"
        + (", calibrated by queries about nothing" if settings["calibrate"] else "")
        + "). `shown`: examples that fitted into the model's rows, a query; `cut`: queries that "
        "did not. A score that does not leave chance and majority behind says nothing of a model.",
        "",
        "| task | metric | questions | model | K | shown | cut | score | chance | majority |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task, baseline in record["baselines"].items():
        for (model, shots), runs in _groups(record, task).items():
            shown = statistics.mean(run["shown"] for run in runs)
            cut = statistics.mean(run["cut"] for run in runs)
            lines.append(
                f"| {task} | {baseline['metric']} | {baseline['examples']:,} | {model} | {shots} | "
                f"{shown:.1f} | {100 * cut:.0f}% | {_percent([run['score'] for run in runs])}"
                f"{_perplexity(runs)} | {100 * baseline['chance']:.1f} | "
                f"{100 * baseline['majority']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def _groups(record: dict[str, Any], task: str) -> dict[tuple[str, int], list[dict]]:
    groups: dict[tuple[str, int], list[dict]] = {}
    for run in record["runs"]:
        if run["task"] == task:
            groups.setdefault((run["model"], run["shots"]), []).append(run)
    return groups


def _percent(scores: list[float]) -> str:
    text = f"{100 * statistics.mean(scores):.1f}"
    return f"{text} ± {100 * statistics.stdev(scores):.1f}" if len(scores) > 1 else text


def _perplexity(runs: list[dict]) -> str:
    if "perplexity" not in runs[0]:
        return ""
    return f" (perplexity {statistics.mean(run['perplexity'] for run in runs):,.0f})"


def _against_shots(record: dict[str, Any], task: str) -> dict[str, dict[float, list[float]]]:
    lines: dict[str, dict[float, list[float]]] = {}
    for (model, shots), runs in _groups(record, task).items():
        lines.setdefault(model, {})[shots] = [run["score"] for run in runs]
    shots = sorted({run["shots"] for run in record["runs"]})
    return lines | _flat(record["baselines"][task], shots)


def _against_size(record: dict[str, Any], task: str) -> dict[str, dict[float, list[float]]]:
    lines: dict[str, dict[float, list[float]]] = {}
    for (_, shots), runs in _groups(record, task).items():
        points = lines.setdefault(f"K = {shots}", {})
        points.setdefault(runs[0]["parameters"], []).extend(run["score"] for run in runs)
    sizes = sorted({run["parameters"] for run in record["runs"]})
    return lines | _flat(record["baselines"][task], sizes)


def _flat(baseline: dict[str, Any], places: list[float]) -> dict[str, dict[float, list[float]]]:
    return {name: {place: [baseline[name]] for place in places} for name in ("chance", "majority")}
