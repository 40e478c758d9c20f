"""Few-shot evaluation: every model, task, number of examples and seed."""

import argparse
import collections
import dataclasses

import numpy as np

from experiments.few_shot import report
from experiments.few_shot.asking import Asker, Asking
from experiments.few_shot.tasks import PromptTask, read_task
from experiments.generate.opening import OpenedModel, open_model
from macaron_tf.data.tasks.prompts import Prompt, Template
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import chance, majority
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.pretrained import is_library, run_place


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
    report.write(record, out)
    print(report.markdown(record), end="")
    print(f"written: {out}/{report.MARKDOWN}, {report.JSON}, {report.FIGURE}")


def limited(task: PromptTask, most: int) -> PromptTask:
    """The task with `most` of its questions, the same ones for every model and seed."""
    if len(task.asked) <= most:
        return task
    chosen = np.sort(np.random.default_rng(0).permutation(len(task.asked))[:most])
    return dataclasses.replace(task, asked=[task.asked[place] for place in chosen])


def baselines(task: PromptTask) -> dict[str, float]:
    """What a guess scores, and what the most frequent answer of the shown examples does."""
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
        opened: the model.
        tasks: what is asked.
        shots: numbers of examples, K.
        seeds: of the examples; without examples there is nothing to draw, and one run.
        asking: how answers are judged.

    Returns:
        A record for each task, K and seed: what `Asker.ask` returns, "model", "parameters", "task",
        "shots" and "seed" (None without examples).
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
