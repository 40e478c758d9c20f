"""Few-shot evaluation of every model, task, number of examples and seed; a table and figures."""

import argparse
import collections
import dataclasses
import statistics
from typing import Any

import numpy as np

from experiments.few_shot.asking import Asker
from experiments.few_shot.tasks import PromptTask, read_task
from experiments.figures import mean_curves
from experiments.generate.opening import OpenedModel, open_model
from experiments.run import write_json
from experiments.studies import grouped, mean_of, table, values
from macaron_tf.data.tasks.prompts import Prompt, Template
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import chance, majority
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track

JSON, MARKDOWN, FIGURE, SIZES = "few_shot.json", "few_shot.md", "few_shot.png", "sizes.png"
_KNOWN = ("chance", "majority")


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints the table, and writes OUT/few_shot.json, .md and .png; of several sizes
    sizes.png too.
    """
    template = None
    if options.template or options.words:
        if not (options.template and options.words and len(options.task) == 1):
            raise UserError("--template and --words go together, with one --task")
        template = Template(options.template.replace("\\n", "\n"), tuple(options.words))
    tasks = [
        limited(read_task(name, options.data_dir, options.download, template), options.max_examples)
        for name in options.task
    ]
    settings = {"normalization": options.normalization, "calibrate": options.calibrate}
    known = {
        task.name: {
            "metric": task.metric,
            "form": task.form,
            "examples": len(task.asked),
            **baselines(task),
        }
        for task in tasks
    }
    record = {"settings": settings, "baselines": known, "runs": []}
    for path in options.runs:
        opened = open_model(path, causal=True)
        record["runs"] += evaluate(opened, tasks, options.shots, options.seeds, **settings)
    out = storage.as_path(options.out)
    write_json(out / JSON, record)
    text = markdown(record)
    storage.write_aside(out / MARKDOWN, text.encode())
    mean_curves(_panels(record, "shots", "model"), out / FIGURE, "examples asked for, K", "score")
    if len({run["parameters"] for run in record["runs"]}) > 1:
        panels = _panels(record, "parameters", "shots", "K = ")
        mean_curves(panels, out / SIZES, "parameters", "score", log_x=True)
    print(text, end="")
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
        labels, known = (np.array([one.label for one in part]) for part in (task.asked, task.pool))
        return {
            "chance": chance(task.measure, labels, len(task.asked[0].choices)),
            "majority": float(majority(task.measure, labels, known)),
        }
    [(answer, _)] = collections.Counter(one.answers[0] for one in task.pool).most_common(1)
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
    opened: OpenedModel, tasks: list[PromptTask], shots: list[int], seeds: list[int], **settings
) -> list[dict]:
    """Scores a model.

    Args:
        shots: numbers of examples, K.
        seeds: of the examples; without examples there is nothing to draw, and one run.
        settings: of `Asker`.

    Returns:
        A record for each task, K and seed: the output of `Asker.ask`, "model", "parameters",
        "task", "shots" and "seed" (None without examples).
    """
    asker = Asker(opened, **settings)
    model = {"model": opened.name, "parameters": opened.network.count_params()}
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks = ((1, one) for one in plan)
    for task, k, seed in track(chunks, len(plan), f"asking {opened.name}", "evaluations"):
        found = asker.ask(task, draw_shots(task, k, seed) if k else [])
        records.append({**model, "task": task.name, "shots": k, "seed": seed, **found})
    return records


def _panels(
    record: dict[str, Any], x: str, name: str, before: str = ""
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Of each task the scores against x, a line a name; chance and majority are straight lines."""
    points = sorted({run[x] for run in record["runs"]})
    panels = {}
    for task, runs in grouped(record["runs"], "task").items():
        panels[task] = {
            f"{before}{value}": {at: values(each, "score") for at, each in grouped(mine, x).items()}
            for value, mine in grouped(runs, name).items()
        }
        for known in _KNOWN:
            panels[task][known] = {at: [record["baselines"][task][known]] for at in points}
    return panels


def markdown(record: dict[str, Any]) -> str:
    """The table of a report: a row for each task, model and K."""
    settings, rows = record["settings"], []
    for task, baseline in record["baselines"].items():
        mine = [run for run in record["runs"] if run["task"] == task]
        known = [f"{100 * baseline[name]:.1f}" for name in _KNOWN]
        for model, runs in grouped(mine, "model").items():
            for shots, group in grouped(runs, "shots").items():
                score = mean_of(group, "score", 1, 100)
                if perplexity := values(group, "perplexity"):
                    score += f" (perplexity {statistics.mean(perplexity):,.0f})"
                asked = [task, baseline["metric"], f"{baseline['examples']:,}", model, str(shots)]
                shown, cut = (statistics.mean(values(group, name)) for name in ("shown", "cut"))
                rows.append([*asked, f"{shown:.1f}", f"{100 * cut:.0f}%", score, *known])
    head = ["task", "metric", "questions", "model", "K", "shown", "cut", "score", *_KNOWN]
    calibrated = ", calibrated by queries about nothing" if settings["calibrate"] else ""
    lines = [
        "# Zero- and few-shot scores",
        "",
        "Scores in percent, mean ± standard deviation over seeds of the examples; answers by "
        f"log-likelihood ({settings['normalization']}{calibrated}). `shown`: examples that fitted "
        "into the model's rows, a query; `cut`: queries that did not. A score that does not leave "
        "chance and majority behind says nothing of a model.",
        "",
        *table(head, rows),
    ]
    return "\n".join(lines) + "\n"
