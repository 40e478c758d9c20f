"""Few-shot evaluation of every model, task, number of examples and seed; a table and figures."""

import argparse
import collections
import dataclasses
import statistics
from typing import Any

import numpy as np
from etils import epath

from experiments.few_shot.asking import Asker, Asking
from experiments.few_shot.tasks import PromptTask, read_task
from experiments.figures import mean_curves
from experiments.generate.opening import OpenedModel, open_model
from experiments.run import write_json
from macaron_tf.data.tasks.prompts import Prompt, Template
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import chance, majority
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.pretrained import is_library, run_place

JSON, MARKDOWN, FIGURE, SIZES = "few_shot.json", "few_shot.md", "few_shot.png", "sizes.png"


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints the table, and writes OUT/few_shot.json, .md and .png."""
    template = None
    if options.template or options.words:
        if not (options.template and options.words and len(options.task) == 1):
            raise UserError("--template and --words go together, with one --task")
        template = Template(options.template.replace("\\n", "\n"), tuple(options.words))
    places = {"data_dir": options.data_dir, "download": options.download}
    tasks = [
        limited(read_task(name, template=template, **places), options.max_examples)
        for name in options.task
    ]
    asking = Asking(options.normalization, options.calibrate)
    settings = {"normalization": asking.normalization, "calibrate": asking.calibrate}
    record = {"settings": settings, "baselines": {}, "runs": []}
    for task in tasks:
        record["baselines"][task.name] = {
            "metric": task.metric,
            "form": task.form,
            "examples": len(task.asked),
            **baselines(task),
        }
    for path in options.runs:
        place = (path, None) if is_library(path) else run_place(path)
        opened = open_model(*place, causal=True)
        record["runs"] += evaluate(opened, tasks, options.shots, options.seeds, asking)
    out = storage.as_path(options.out)
    write_report(record, out)
    print(markdown(record), end="")
    print(f"written: {out}/{MARKDOWN}, {JSON}, {FIGURE}")


def limited(task: PromptTask, most: int) -> PromptTask:
    """The task with `most` of its questions, the same ones for every model and seed."""
    if len(task.asked) <= most:
        return task
    chosen = np.sort(np.random.default_rng(0).permutation(len(task.asked))[:most])
    return dataclasses.replace(task, asked=[task.asked[place] for place in chosen])


def baselines(task: PromptTask) -> dict[str, float]:
    """The scores of a random guess and of the most frequent answer among the shown examples."""
    if task.form == "choice":
        labels, known = (
            np.array([prompt.label for prompt in prompts]) for prompts in (task.asked, task.pool)
        )
        choices = len(task.asked[0].choices)
        return {
            "chance": chance(task.measure, labels, choices),
            "majority": float(majority(task.measure, labels, known)),
        }
    counts = collections.Counter(prompt.answers[0] for prompt in task.pool)
    [(answer, _)] = counts.most_common(1)
    truths = [prompt.answers for prompt in task.asked]
    if task.form == "last_word":
        return {"chance": 0.0, "majority": float(np.mean([t == (answer,) for t in truths]))}
    return {"chance": 0.0, "majority": score_answers([answer] * len(truths), truths)["f1"]}


def draw_shots(task: PromptTask, count: int, seed: int) -> list[Prompt]:
    """K examples of a task's pool: those of a smaller K begin those of a larger one.

    One draw serves all questions of a seed, as in Zhao et al. 2021, so that the spread over seeds
    shows how much depends on the examples; Brown et al. 2020 draw anew for each question.
    """
    order = np.random.default_rng(seed).permutation(len(task.pool))
    return [task.pool[place] for place in order[:count]]


def evaluate(
    opened: OpenedModel,
    tasks: list[PromptTask],
    shots: list[int],
    seeds: list[int],
    asking: Asking,
) -> list[dict]:
    """Scores a model.

    Args:
        shots: numbers of examples, K.
        seeds: of the examples; without examples there is nothing to draw, and one run.

    Returns:
        A record for each task, K and seed: the output of `Asker.ask`, "model", "parameters",
        "task", "shots" and "seed" (None without examples).
    """
    asker = Asker(opened, asking)
    parameters = opened.network.count_params()
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks = ((1, one) for one in plan)
    for task, k, seed in track(chunks, len(plan), f"asking {opened.name}", "evaluations"):
        found = asker.ask(task, draw_shots(task, k, seed) if k else [])
        records.append(
            {
                "model": opened.name,
                "parameters": parameters,
                "task": task.name,
                "shots": k,
                "seed": seed,
                **found,
            }
        )
    return records


def write_report(record: dict[str, Any], out: epath.Path) -> None:
    """Writes OUT/few_shot.json, few_shot.md and few_shot.png; of several sizes sizes.png too.

    Args:
        record: "settings", "baselines" by task, and "runs", of `evaluate`.

    Raises:
        UserError: it cannot be written.
    """
    write_json(out / JSON, record)
    storage.write_aside(out / MARKDOWN, markdown(record).encode())
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


def _flat(baseline: dict[str, Any], at: list[float]) -> dict[str, dict[float, list[float]]]:
    """Chance and majority as lines through the points `at`."""
    return {name: {x: [baseline[name]] for x in at} for name in ("chance", "majority")}
