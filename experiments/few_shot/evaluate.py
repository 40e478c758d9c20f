"""Few-shot evaluation of language models, and the report with a table and figures."""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.few_shot.tasks import (
    Prompt,
    PromptTask,
    baselines,
    draw_shots,
    limit_questions,
    read_task,
)
from experiments.score import open_model
from experiments.studies import grouped, mean_curves, mean_of, table, values
from macaron_tf.decoding import fill_context
from macaron_tf.decoding.scoring import split_ids
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.model import Pretrained
from macaron_tf.runs.run import write_json
from macaron_tf.text.normalization import as_prompt

JSON, MARKDOWN, FIGURE, SIZES = "few_shot.json", "few_shot.md", "few_shot.png", "sizes.png"
_BASELINES = ("chance", "majority")
Ids = list[int]


def run(options: argparse.Namespace) -> None:
    """Runs the command `few_shot`: evaluates models, and prints and writes the report."""
    tasks = [
        limit_questions(read_task(name, options.tfds), options.max_examples)
        for name in options.task
    ]
    names = [task.name for task in tasks]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"two values of --task have the same name, {repeated!r}: give them in two commands"
        )
    models = [open_model(path, options.trust_code) for path in options.runs]
    task_records = {
        task.name: {"metric": task.metric, "examples": len(task.questions), **baselines(task)}
        for task in tasks
    }
    record = {"baselines": task_records, "runs": []}
    out = storage.as_path(options.out)
    with storage.clear_errors(f"--out {out} cannot be created", "choose another folder"):
        storage.make_folders(out)
    for path, pretrained in zip(options.runs, models, strict=True):
        earlier = {run["model"] for run in record["runs"]}
        if pretrained.name in earlier:  # another checkpoint or folder
            pretrained = dataclasses.replace(pretrained, name=str(path))
        record["runs"] += evaluate(pretrained, tasks, options.shots, options.seeds)
    text = markdown(record)
    print(text, end="", flush=True)
    write_json(out / JSON, record)
    storage.write_atomic(out / MARKDOWN, text.encode())
    mean_curves(_panels(record, "shots", "model"), out / FIGURE, "number of examples, K", "score")
    if len({run["parameters"] for run in record["runs"]}) > 1:
        panels = _panels(record, "parameters", "shots", "K = ")
        mean_curves(panels, out / SIZES, "parameters", "score", log_x=True)
    print(f"written: {out}/{MARKDOWN}, {out}/{JSON}, {out}/{FIGURE}")


class Asker:
    """Evaluator of a model on tasks in the form of prompts."""

    def __init__(self, pretrained: Pretrained):
        self.pretrained = pretrained
        self.scorer = self.pretrained.task.scorer(self.pretrained.task.window)

    def ask(self, task: PromptTask, shots: Sequence[Prompt]) -> dict[str, float]:
        """Evaluates the model on a task.

        Args:
            shots: examples to put before each question, in order. Examples that do not fit in the
                row are skipped.

        Returns:
            A dict of metrics. "score" is the main metric, such as a fraction of correct answers.
            "shown" is the mean number of examples before a question. "cut" is the fraction of
            questions whose beginning was truncated. Last-word prediction adds "perplexity".
        """
        shown = [_in_one_line(f"{shot.query} {shot.answer}") + " " for shot in shots]
        queries = [
            _in_one_line(prompt.query if shots or prompt.bare_query is None else prompt.bare_query)
            for prompt in task.questions
        ]
        answers = [task.choices or (prompt.answer,) for prompt in task.questions]
        examples, questions, choices = self._encode(shown, queries, answers)
        window, filled = self.pretrained.task.window, []
        for question, options in zip(questions, choices, strict=True):
            room = max(window - 1 - max(map(len, options)), 1)  # for [CLS] and the longest answer
            filled.append(fill_context(examples, question, room))
        contexts = [context.ids for context in filled]
        if task.choices:
            scores = self._choice_scores(contexts, choices)  # (N, C)
            labels = np.array([prompt.label for prompt in task.questions])
            metrics = {"score": float(task.measure(scores.argmax(axis=1), labels))}
        else:
            metrics = self._last_word_metrics(contexts, choices)
        return {
            **metrics,
            "shown": float(np.mean([context.shown for context in filled])),
            "cut": float(np.mean([context.cut for context in filled])),
        }

    def _encode(
        self, examples: Sequence[str], queries: Sequence[str], answers: Sequence[Sequence[str]]
    ) -> tuple[list[Ids], list[Ids], list[list[Ids]]]:
        """Encodes the parts of prompts, as in a prompt with all examples (see `split_ids`).

        Each example ends with a space. `answers` has one or more answers to each query, without the
        space before them.
        """
        vocabulary = self.pretrained.vocabulary
        [[*example_ids, _]] = split_ids(vocabulary, [[*examples, *queries[:1], ""]])
        texts = [
            [*examples[-1:], query, f" {_in_one_line(word)}".rstrip()]
            for query, words in zip(queries, answers, strict=True)
            for word in words
        ]
        parts = iter(split_ids(vocabulary, texts))
        rows = [[next(parts) for _ in words] for words in answers]
        return (
            example_ids[: len(examples)],
            [row[0][-2] for row in rows],
            [[answer for *_, answer in row] for row in rows],
        )

    def _choice_scores(self, contexts: list[Ids], choices: list[list[Ids]]) -> np.ndarray:
        """Returns the scores of C choices after each of N contexts, `(N, C)`.

        A score is the log-likelihood per token, so that short choices have no advantage (Brown et
        al. 2020, section 2.4).
        """
        pairs = zip(contexts, choices, strict=True)
        scores = self.scorer.score([(ids, option) for ids, options in pairs for option in options])
        return (scores.log_probs / scores.lengths).reshape(len(contexts), len(choices[0]))

    def _last_word_metrics(self, contexts: list[Ids], words: list[list[Ids]]) -> dict[str, float]:
        pairs = zip(contexts, words, strict=True)
        scores = self.scorer.score([(ids, word) for ids, [word] in pairs])
        perplexity = math.exp(min(-float(scores.log_probs.mean()), 700.0))
        return {"score": float(scores.greedy.mean()), "perplexity": perplexity}


def _in_one_line(text: str) -> str:
    return as_prompt(text).lstrip()


def evaluate(
    pretrained: Pretrained,
    tasks: list[PromptTask],
    shots: list[int],
    seeds: list[int],
) -> list[dict]:
    """Evaluates a model on every combination of task, number of shots K and seed.

    The seeds draw the shots. K = 0 is evaluated once, with the seed `None`. Each dict has the
    output of `Asker.ask` and the keys "model", "parameters", "task", "shots" and "seed".
    """
    asker = Asker(pretrained)
    model = {"model": pretrained.name, "parameters": pretrained.network.count_params()}
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks = ((1, item) for item in plan)
    for task, k, seed in track(chunks, len(plan), f"evaluating {pretrained.name}", "evaluations"):
        try:
            metrics = asker.ask(task, draw_shots(task, k, seed) if k else [])
        except UserError as error:
            raise UserError(f"--task {task.name}: {error}") from error
        records.append({**model, "task": task.name, "shots": k, "seed": seed, **metrics})
    return records


def _panels(
    record: dict[str, Any], x: str, name: str, prefix: str = ""
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Returns the curves of a figure with one panel for each task.

    A panel shows the scores over `x`, and horizontal lines for the chance level and the majority
    class. `x` and `name` are keys in the dict of a run: the values on the x axis, and the names of
    the curves, after `prefix`.
    """
    points = sorted({run[x] for run in record["runs"]})
    panels = {}
    for task, runs in grouped(record["runs"], "task").items():
        panels[task] = {
            f"{prefix}{value}": {
                x_value: values(group, "score") for x_value, group in grouped(curve_runs, x).items()
            }
            for value, curve_runs in grouped(runs, name).items()
        }
        for baseline in _BASELINES:
            panels[task][baseline] = {
                x_value: [record["baselines"][task][baseline]] for x_value in points
            }
    return panels


def markdown(record: dict[str, Any]) -> str:
    """Formats few_shot.md, which has a table of the scores for every task, model and K."""
    rows = []
    for task, baseline in record["baselines"].items():
        task_runs = [run for run in record["runs"] if run["task"] == task]
        baseline_cells = [f"{100 * baseline[name]:.1f}" for name in _BASELINES]
        for model, runs in grouped(task_runs, "model").items():
            for shots, group in grouped(runs, "shots").items():
                score = mean_of(group, "score", 1, 100)
                if perplexity := values(group, "perplexity"):
                    score += f" (perplexity {statistics.mean(perplexity):,.0f})"
                cells = [task, baseline["metric"], f"{baseline['examples']:,}", model, str(shots)]
                shown, cut = (statistics.mean(values(group, name)) for name in ("shown", "cut"))
                rows.append([*cells, f"{shown:.1f}", f"{100 * cut:.0f}%", score, *baseline_cells])
    head = ["task", "metric", "questions", "model", "K", "shown", "cut", "score", *_BASELINES]
    lines = [
        "# Zero- and few-shot scores",
        "",
        "Scores in percent, mean ± standard deviation over seeds of the examples. Classes by "
        "log-likelihood per token.",
        "`shown` is the mean number of examples per query that fit into a row. `cut` is the share",
        "of queries that were truncated. A score near chance or majority shows no ability.",
        "",
        *table(head, rows),
    ]
    return "\n".join(lines) + "\n"
