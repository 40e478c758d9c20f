"""The command `finetune grid`, which trains a run for each combination of settings."""

import argparse
import dataclasses
import itertools
import os
import re
import statistics
import sys
from collections.abc import Iterator

import keras
import tensorflow as tf
from etils import epath

from experiments.epochs import NOTHING, read_init
from experiments.finetune.evaluate import score_baseline
from experiments.finetune.run import (
    TABLE_METRICS,
    FinetuningRecipe,
    FinetuningResult,
    FinetuningRun,
    preset,
)
from experiments.finetune.train import (
    TRAIN,
    TaskData,
    check_recipe,
    configure,
    result_of,
    train_recipe,
)
from experiments.recipe import override, refuse_argument_settings, unread
from experiments.run import write_json
from experiments.studies import cell, table, values
from macaron_tf.data.example_batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.starts import Start
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import Diverged
from macaron_tf.training.checkpoints import CheckpointDirectory

# Settings that have a flag of their own. `--set` is refused for them, because the table shows the
# values of the flags.
_FLAGS = {
    "training.learning_rate": "--learning-rates",
    "training.seed": "--seeds",
    "batch_size": "--batch-sizes",
    "epochs": "--epochs",
}
JSON, MARKDOWN = "grid.json", "grid.md"
_GROUP = ("model", "task", "learning_rate", "batch_size", "epochs")
# Tasks in table 2 of Lu et al. 2019, except WNLI, which the mean in that table includes.
_GLUE = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"}
_GLUE_MEAN = (
    " In table 2 of Lu et al. 2019, the means of these eight tasks are 81.48 (Macaron) and 78.75 "
    "(BERT). The published mean of Macaron, 79.7, includes WNLI at 65.1."
)
_LABEL = re.compile(r"[\w.+-]+")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A training run in the grid.

    Attributes:
        model: name of the model's row in the table.
        init: the model to start from.
        recipe: recipe of the run.
        path: folder of the run.
    """

    model: str
    init: Start
    recipe: FinetuningRecipe
    path: epath.Path

    def saved_result(self, data: TaskData) -> FinetuningResult | None:
        """Returns the saved result of a complete run, or `None` if the run must still be trained.

        Args:
            data: data of the run's task.

        Raises:
            UserError: the folder has a run with other settings, another vocabulary or other
                examples.
        """
        existing_run = FinetuningRun.resume(self.path, self.recipe)
        if existing_run is None:
            return None
        check_vocabulary(existing_run.vocabulary.hash, self.init.vocabulary.hash, self.path)
        if (result := existing_run.result()) is None or existing_run.recipe != self.recipe:
            return None
        encoded = data.encoded(self.init.vocabulary, self.recipe.limits)[TRAIN]
        existing_run.check_data(ExampleBatches(encoded, self.recipe.batch_size).fingerprint())
        return result

    def train(self, data: TaskData, strategy: tf.distribute.Strategy) -> FinetuningResult:
        """Trains the run and returns its result, even if training diverges."""
        try:
            trained = train_recipe(self.recipe, self.path, data, self.init, strategy)
        except Diverged as error:
            # The grid continues, because the table shows which learning rates were too high.
            print(f"diverged: {error}", file=sys.stderr)
            trained = None
        # Frees the graphs of this run, so that the next run depends only on its own seed.
        keras.utils.clear_session()
        return result_of(self.path, trained)

    def keep_best(self) -> None:
        """Removes all checkpoints of a finished run except the best checkpoint, if there is one.

        A checkpoint of BERT-base with optimizer state takes 1.3 GB. In a grid of 32 runs, two
        checkpoints per run would take 83 GB.
        """
        checkpoints = CheckpointDirectory(self.path)
        best = checkpoints.best()
        with storage.clear_errors(f"cannot remove checkpoints in {checkpoints.path}"):
            for step in checkpoints.steps():
                if best is None or step != best["step"]:
                    tf.io.gfile.rmtree(os.fspath(checkpoints.of_step(step)))

    def record(self, result: FinetuningResult) -> dict:
        """Returns the entry of the run in grid.json."""
        recipe, training = self.recipe, self.recipe.training
        return {
            "model": self.model,
            "run": str(self.path),
            "task": recipe.task,
            "init": self.init.given,
            "learning_rate": training.learning_rate,
            "batch_size": recipe.batch_size,
            "epochs": recipe.epochs,
            "max_steps": training.max_steps,
            "seed": training.seed,
            "score": result.best_score,
            **dataclasses.asdict(result),
        }


def run(options: argparse.Namespace) -> None:
    """Runs the command `grid`: trains missing runs, and prints the table at the end.

    The table is written after each run. Only the best checkpoint of each run is kept.
    """
    if options.source and len(options.tasks) > 1:
        raise UserError(
            f"--source {options.source} needs a single task, but {len(options.tasks)} tasks are "
            "given: give one TASK"
        )
    for name in ("tasks", "learning_rates", "batch_sizes", "epochs", "seeds"):
        flag_values = getattr(options, name) or []
        repeated = [value for i, value in enumerate(flag_values) if value in flag_values[:i]]
        if repeated:
            flag = "TASK" if name == "tasks" else f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} contains {repeated[0]} twice: give each value once")
    steps = {"training.max_steps": "--epochs"} if options.epochs else {}
    refuse_argument_settings(options.set, {**_FLAGS, **steps})
    inits = _inits(options)
    list(_cells(options, inits, {}))  # raises for invalid settings before data are read
    data = {}
    for task in options.tasks:
        task_definition = get_task(task, own=True)
        table_settings = override(preset(options.preset, task_definition), options.set).table
        data[task] = TaskData(task_definition, options.source, options.tfds, table_settings)
    cells, out = list(_cells(options, inits, data)), storage.as_path(options.out)
    record = {
        "command": options.line,
        "preset": options.preset,
        "tasks": options.tasks,
        "models": list(inits),
        "planned": len(cells),
        "runs": [],
        "baselines": {},
    }
    if options.baseline:
        for task, examples in data.items():
            print(f"{task}: scoring the baseline", flush=True)
            if (metrics := score_baseline(examples)) is not None:
                record["baselines"][task] = metrics
    for index, grid_cell in enumerate(cells, 1):
        name = f"[{index}/{len(cells)}] {grid_cell.path.relative_to(out)}"
        examples = data[grid_cell.recipe.task]
        result = grid_cell.saved_result(examples)
        if result is None:
            print(name, flush=True)
            result = grid_cell.train(examples, options.devices)
        score = "no score" if result.best_score is None else f"score {result.best_score:.4f}"
        print(f"{name}: {score} ({result.reason})", flush=True)
        record["runs"].append(grid_cell.record(result))
        # Written after each run, so that the table of a long grid can be read early.
        full = {**record, "combinations": combinations(record["runs"])}
        write_json(out / JSON, full)
        text = markdown(full)
        storage.write_atomic(out / MARKDOWN, text.encode())
        grid_cell.keep_best()
    print(text)
    print(f"table: {out / MARKDOWN} and {out / JSON}")


def _inits(options: argparse.Namespace) -> dict[str, Start]:
    """Loads the models to start from, as a dict mapping the name of a table row to a model.

    The name is NAME in `--init NAME=FROM`, or by default `Start.label`, such as the name of the
    model's folder.
    """
    inits: dict[str, Start] = {}
    for argument in options.init:
        name, equals, location = argument.partition("=")
        if not equals or not _LABEL.fullmatch(name):
            name, location = "", argument
        model = options.model if location == NOTHING or len(options.init) == 1 else None
        arguments = location, model, options.vocabulary, options.lower_case
        init = read_init(*arguments, trust_code=options.trust_code)
        name = name or init.label
        if name in inits:
            raise UserError(
                f"two models of --init are called {name!r}: give one of them another name, as in "
                f"{name}2={location}"
            )
        inits[name] = init
    return inits


def _cells(
    options: argparse.Namespace, inits: dict[str, Start], data: dict[str, TaskData]
) -> Iterator[Cell]:
    """Yields a `Cell` for each combination of model, task and settings.

    A setting of `--set` that only some of the tasks or models use, such as `spans.max_question`,
    applies to those only.

    Args:
        options: parsed options of the command.
        inits: dict mapping the name of a table row to the model to start from.
        data: dict mapping a task to its data. If a task is missing, the recipes for this task have
            no update counts.
    """

    def configured(init: Start, task: str, settings: list[str]) -> FinetuningRecipe:
        recipe = preset(options.preset, get_task(task, own=True))
        return configure(recipe, init, options.source, settings)

    combined = list(itertools.product(inits.items(), options.tasks))
    unread_sets = [
        set(unread(configured(init, task, options.set), options.set))
        for (_, init), task in combined
    ]
    nowhere_read = set.intersection(*unread_sets)  # `check_recipe` refuses these settings
    for ((model, init), task), unread_here in zip(combined, unread_sets, strict=True):
        ignored = unread_here - nowhere_read
        recipe = configured(init, task, [one for one in options.set if one not in ignored])
        training = recipe.training
        for rate, batch_size, epochs, seed in itertools.product(
            options.learning_rates or [training.learning_rate],
            options.batch_sizes or [recipe.batch_size],
            options.epochs or [recipe.epochs],
            options.seeds or [training.seed],
        ):
            chosen = recipe.changed(
                training=dict(learning_rate=rate, seed=seed), batch_size=batch_size, epochs=epochs
            )
            if task in data:
                chosen = data[task].resolve_recipe(chosen)
            check_recipe(chosen, init)
            length = f"steps{chosen.training.max_steps}" if epochs is None else f"epochs{epochs:g}"
            name = f"lr{rate:g}-batch{batch_size}-{length}-seed{seed}"
            yield Cell(model, init, chosen, storage.as_path(options.out) / task / model / name)


def combinations(runs: list[dict]) -> list[dict]:
    """Groups runs that differ only in their seed.

    Returns:
        A list with a dict for each group. The dict has the settings of the group, "mean" and
        "deviation" of the finite scores, "diverged" and "runs". "mean" is `None` if there is no
        score, and "deviation" is `None` if there are fewer than two scores. "diverged" is the
        number of runs that diverged or have no finite score. The groups of a task and model are
        sorted by "diverged", then by "mean" from the best to the worst.
    """
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        groups.setdefault(tuple((name, run[name]) for name in _GROUP), []).append(run)
    all_combinations = []
    for settings, members in groups.items():
        scores = values(members, "score")
        diverged = sum(run["reason"] == "diverged" or run["score"] is None for run in members)
        combination = dict(settings)
        combination["mean"] = statistics.mean(scores) if scores else None
        combination["deviation"] = statistics.stdev(scores) if len(scores) > 1 else None
        all_combinations.append({**combination, "diverged": diverged, "runs": members})

    def order(combination: dict) -> tuple:
        unscored, mean = combination["mean"] is None, combination["mean"] or 0.0
        return (combination["task"], combination["model"], combination["diverged"], unscored, -mean)

    return sorted(all_combinations, key=order)


def metric_values(runs: list[dict], metric: str) -> list[float]:
    """Returns the values of a metric, or of "score", in all runs that report this metric."""
    return values([{**run["metrics"], "score": run["score"]} for run in runs], metric)


def markdown(record: dict) -> str:
    """Formats grid.md, with the best score of each model and task, and then all combinations."""
    tasks, all_combinations = record["tasks"], record["combinations"]
    best = {
        (combination["model"], combination["task"]): combination
        for combination in reversed(all_combinations)
    }
    rows = []
    for model in record["models"]:
        chosen = [best.get((model, task), {"runs": [], "mean": None}) for task in tasks]
        mean = _mean([combination["mean"] for combination in chosen])
        rows.append([model, *map(_score_text, chosen), mean])
    if baselines := record["baselines"]:
        scores = [baselines.get(task, {}).get("score") for task in tasks]
        rows.append(["baseline", *(_mean([score]) for score in scores), _mean(scores)])
    done, planned = len(record["runs"]), record["planned"]
    seeds = ", ".join(map(str, sorted({run["seed"] for run in record["runs"]})))
    metrics = {task: " and ".join(get_task(task, own=True).metrics) for task in tasks}
    names = "; ".join(f"{task} {metric_names}" for task, metric_names in metrics.items())
    head = ["task", "model", "learning rate", "batch", "epochs", "seeds", "score", "metrics"]
    all_rows = [
        _combination_row(
            combination, combination is best[combination["model"], combination["task"]]
        )
        for combination in all_combinations
    ]
    compares_with_table_2 = record["preset"] == "macaron" and set(tasks) >= _GLUE
    text = [
        "# Fine-tuning" + ("" if done == planned else f" ({done} of {planned} runs)"),
        f"`{record['command']}`",
        "Development-set scores times 100. Each cell shows the combination with the best mean over "
        f"seeds ({seeds}), ± the sample standard deviation.",
        "\n".join(table(["model", *tasks, "mean"], rows)),
        f"A task's score is the mean of its metrics: {names}." + _GLUE_MEAN * compares_with_table_2,
        *_as_published(record, best),
        "\n".join(table(head, all_rows)),
    ]
    return "\n\n".join(text) + "\n"


def _as_published(record: dict, best: dict[tuple[str, str], dict]) -> list[str]:
    """Returns a sentence and a second table, with the metrics that the preset's paper reports.

    If `TABLE_METRICS` names no such metric for any task of the grid, the result is empty.
    """
    metrics, tasks, rows = TABLE_METRICS.get(record["preset"], {}), record["tasks"], []
    replaced = [f"{task} by {metrics[task]}" for task in tasks if task in metrics]
    if not replaced:
        return []
    for model in record["models"]:
        task_scores = []  # the scores of each task
        for task in tasks:
            runs = best.get((model, task), {"runs": []})["runs"]
            task_scores.append(metric_values(runs, metrics.get(task, "score")))
        mean = _mean([statistics.mean(scores) if scores else None for scores in task_scores])
        rows.append([model, *(cell(scores, 1, 100) for scores in task_scores), mean])
    names = " and ".join(replaced)
    text = f"The same table with {names}, probably the metrics of the paper's table:"
    return [text, "\n".join(table(["model", *tasks, "mean"], rows))]


def _mean(scores: list[float | None]) -> str:
    return "" if None in scores else cell([statistics.mean(scores)], 1, 100)


def _score_text(combination: dict) -> str:
    if scores := values(combination["runs"], "score"):
        return cell(scores, 1, 100) + (" (diverged)" if combination["diverged"] else "")
    return "diverged" if combination["runs"] else ""


def _combination_row(combination: dict, is_best: bool) -> list[str]:
    task, runs, score = (
        get_task(combination["task"], own=True),
        combination["runs"],
        _score_text(combination),
    )
    metrics = [
        f"{name} {_mean(metric_scores)}"
        for name in (*task.metrics, *task.more_metrics)
        if (metric_scores := values([run["metrics"] for run in runs], name))
    ]
    epochs, rate = combination["epochs"], f"{combination['learning_rate']:g}"
    length = f"{runs[0]['max_steps']:,} steps" if epochs is None else f"{epochs:g}"
    chosen = [
        task.name,
        combination["model"],
        rate,
        str(combination["batch_size"]),
        length,
        str(len(runs)),
    ]
    return [*chosen, f"**{score}**" if is_best else score, ", ".join(metrics)]
