"""Few-shot evaluation of language models, and the report with a table and figures."""

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

from experiments import studies
from experiments.few_shot.tasks import Prompt, PromptTask, baselines, draw_shots, read_task
from experiments.score import open_model
from macaron_tf.decoding import fill_context
from macaron_tf.decoding.scoring import TextScorer, split_ids
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.model import Model
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import as_prompt

_BASELINES = ("chance", "majority")
Ids = list[int]


def run(options: argparse.Namespace) -> None:
    """Runs the command `few_shot`: evaluates models, and prints and writes the report."""
    models = [open_model(path, options.trust_code) for path in options.runs]
    tasks = [read_task(name, options.tfds, options.max_examples) for name in options.task]
    levels = {
        task.name: {"metric": task.metric, "examples": len(task.questions), **baselines(task)}
        for task in tasks
    }
    out, runs = storage.as_path(options.out), []
    with storage.clear_errors(f"--out {out} cannot be created", "choose another folder"):
        storage.make_folders(out)
    for path, pretrained in zip(options.runs, models, strict=True):
        if pretrained.card.name in {run["model"] for run in runs}:  # another checkpoint or folder
            pretrained = pretrained.with_card(name=str(path))
        runs += evaluate(pretrained, tasks, options.shots, options.seeds)
    figure = out / "few_shot.png"
    studies.mean_curves(_panels(levels, runs), figure, "number of examples, K", "score")
    title, lines = "Zero- and few-shot scores", _report(levels, runs)
    studies.write(out, "few_shot", options, title, lines, baselines=levels, runs=runs)


def ask(scorer: TextScorer, task: PromptTask, shots: Sequence[Prompt]) -> dict[str, float]:
    """Evaluates the model of `scorer` on a task in the form of prompts, after as many shots as fit.

    The metrics are "score", such as a fraction of correct answers, "shown", the mean number of
    shots before a question, and "cut", the fraction of questions whose beginning was truncated.
    """
    shown = [_in_one_line(f"{shot.query} {shot.answer}") + " " for shot in shots]
    queries = [_in_one_line(prompt.query) for prompt in task.questions]
    examples, questions, choices = _encode(scorer.vocabulary, shown, queries, task.choices)
    filled = []
    for question, options in zip(questions, choices, strict=True):
        room = scorer.window - 1 - max(map(len, options))  # for [CLS] and the longest answer
        filled.append(fill_context(examples, question, max(room, 1)))
    contexts = [context.ids for context in filled]
    pairs = zip(contexts, choices, strict=True)
    scores = scorer.score([(ids, answer) for ids, options in pairs for answer in options])
    # Per token, so that short choices have no advantage (Brown et al. 2020, section 2.4).
    log_probs = (scores.log_probs / scores.lengths).reshape(len(contexts), -1)  # (N, C)
    labels = np.array([prompt.label for prompt in task.questions])
    return {
        "score": float(task.measure(log_probs.argmax(axis=1), labels)),
        "shown": float(np.mean([context.shown for context in filled])),
        "cut": float(np.mean([context.cut for context in filled])),
    }


def _encode(
    vocabulary: PieceVocabulary,
    examples: Sequence[str],
    queries: Sequence[str],
    words: Sequence[str],
) -> tuple[list[Ids], list[Ids], list[list[Ids]]]:
    """Encodes the parts of prompts, as in a prompt with all examples (see `split_ids`)."""
    [[*example_ids, _]] = split_ids(vocabulary, [[*examples, *queries[:1], ""]])
    texts = [
        [*examples[-1:], query, f" {_in_one_line(word)}".rstrip()]
        for query in queries
        for word in words
    ]
    parts = iter(split_ids(vocabulary, texts))
    rows = [[next(parts) for _ in words] for _ in queries]
    choices = [[answer for *_, answer in row] for row in rows]
    return example_ids[: len(examples)], [row[0][-2] for row in rows], choices


def _in_one_line(text: str) -> str:
    return as_prompt(text).lstrip()


def evaluate(
    pretrained: Model, tasks: list[PromptTask], shots: list[int], seeds: list[int]
) -> list[dict]:
    """Evaluates a model on every combination of task, number of shots K and seed.

    The seeds draw the shots. K = 0 is evaluated once, with the seed `None`.
    """
    scorer = pretrained.task.scorer(pretrained.task.window)
    model = {"model": pretrained.card.name, "parameters": pretrained.network.count_params()}
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks, title = ((1, item) for item in plan), f"evaluating {pretrained.card.name}"
    for task, k, seed in track(chunks, len(plan), title, "evaluations"):
        try:
            metrics = ask(scorer, task, draw_shots(task, k, seed) if k else [])
        except UserError as error:
            raise UserError(f"--task {task.name}: {error}") from error
        records.append({**model, "task": task.name, "shots": k, "seed": seed, **metrics})
    return records


def _panels(
    levels: dict[str, dict], runs: list[dict]
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Returns the curves of the figure, with one panel for each task."""
    panels = {}
    for task, task_runs in studies.grouped(runs, "task").items():
        named = [{"curve": [run], "model": run["model"]} for run in task_runs]
        lines = {line: [levels[task][line]] for line in _BASELINES}
        points = sorted({run["shots"] for run in runs})
        panels[task] = studies.curves(named, "model", "shots", "score")
        panels[task] |= {line: dict.fromkeys(points, level) for line, level in lines.items()}
    return panels


def _report(levels: dict[str, dict], runs: list[dict]) -> list[str]:
    """Formats the table of the scores for every task, model and K."""
    rows, tasks = [], list(levels)
    groups = studies.grouped(runs, "task", "model", "shots").items()
    for (task, model, shots), group in sorted(groups, key=lambda item: tasks.index(item[0][0])):
        baseline = levels[task]
        rows.append(
            {
                "task": task,
                "metric": baseline["metric"],
                "questions": f"{baseline['examples']:,}",
                "model": model,
                "K": str(shots),
                "shown": f"{statistics.mean(studies.values(group, 'shown')):.1f}",
                "cut": f"{100 * statistics.mean(studies.values(group, 'cut')):.0f}%",
                "score": studies.mean_of(group, "score", 1, 100),
                **{name: f"{100 * baseline[name]:.1f}" for name in _BASELINES},
            }
        )
    return [
        "Scores in percent, mean ± standard deviation over seeds of the examples. Classes by "
        "log-likelihood per token. `shown` is the mean number of examples per query that fit into "
        "a row. `cut` is the share of queries that were truncated. A score near chance or majority "
        "shows no ability.",
        "",
        *studies.table_of(rows),
    ]
