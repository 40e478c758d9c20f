"""Parts of the studies: runs by the commands that a person would type, and their reports."""

import argparse
import contextlib
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence

from experiments import registry
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.recipe import check_same, override, recipe_from_json
from macaron_tf.errors import UserError
from macaron_tf.io.paths import write_aside
from macaron_tf.training.progress import VALIDATION, read_lines


def pretrained(
    name: str,
    run: pathlib.Path,
    corpus: str,
    settings: Sequence[str],
    log: pathlib.Path | None = None,
) -> list[dict]:
    """Trains a recipe's run unless it is complete.

    Args:
        name: of the recipe.
        corpus: folder of `pretrain prepare`.
        settings: replaced ones, `path=value`.
        log: file that gets the training's output; None = stdout.

    Returns:
        The lines of the run's `metrics.jsonl`.

    Raises:
        UserError: a bad setting, a run of other settings in the folder, or a failed training.
    """
    recipe = override(registry.load(name, PretrainingRecipe), settings)
    recipe.model_config()
    file = run / "recipe.json"
    if file.is_file():
        theirs = recipe_from_json(PretrainingRecipe, file.read_text(encoding="utf-8"), str(file))
        check_same(theirs, recipe, run, ("corpus.", "vocabulary."))  # they follow from the corpus
    if not _validated(run, recipe.training.max_steps):
        chosen = [word for setting in settings for word in ("--set", setting)]
        command("pretrain", "train", name, str(run), "--corpus", corpus, *chosen, log=log)
    if not _validated(run, recipe.training.max_steps):
        raise UserError(f"{run} stopped before step {recipe.training.max_steps:,}: see its output")
    lines = read_lines(run / "metrics.jsonl")
    for line in lines:
        if line["kind"] == VALIDATION and line["loss"] is None:
            raise UserError(
                f"{run} diverged: its validation loss at step {line['step']:,} is no number; lower "
                "training.learning_rate, or leave the run out"
            )
    return lines


def is_complete(run: pathlib.Path) -> bool:
    """Whether a folder holds a pre-training that has come to its end."""
    file = run / "recipe.json"
    if not file.is_file():
        return False
    recipe = recipe_from_json(PretrainingRecipe, file.read_text(encoding="utf-8"), str(file))
    return _validated(run, recipe.training.max_steps)


def _validated(run: pathlib.Path, step: int) -> bool:
    lines = read_lines(run / "metrics.jsonl")
    return any(line["kind"] == VALIDATION and line["step"] == step for line in lines)


def grid(
    options: argparse.Namespace, out: pathlib.Path, *more: str, log: pathlib.Path | None = None
) -> list[dict]:
    """`finetune grid` of the command's tasks.

    Args:
        options: with `tasks`, `data_dir`, `source`, `finetune_set`.
        out: the grid's folder.
        more: further words of its command line.
        log: file that gets its output; None = stdout.

    Returns:
        Its combinations, see `experiments.finetune.grid.combinations`.
    """
    chosen = [word for setting in options.finetune_set for word in ("--set", setting)]
    data = ["--data-dir", options.data_dir] if options.data_dir else []
    data += ["--source", options.source] if options.source else []
    command("finetune", "grid", *options.tasks, str(out), *more, *data, *chosen, log=log)
    return json.loads((out / "grid.json").read_text(encoding="utf-8"))["combinations"]


def command(script: str, *words: str, log: pathlib.Path | None = None) -> None:
    """Runs a command of experiments in a process of its own: only its seed decides the result.

    Args:
        script: name of the module.
        words: of its command line.
        log: file that its output is appended to; None = stdout.

    Raises:
        UserError: it failed.
    """
    line = [sys.executable, "-m", f"experiments.{script}", *words]
    with open(log, "ab") if log else contextlib.nullcontext() as output:
        status = subprocess.run(line, check=False, stdout=output, stderr=output).returncode
    if status:
        where = f"in {log}" if log else "above"
        raise UserError(
            f"`python -m experiments.{script} {shlex.join(words)}` failed: read its message {where}"
        )


def cell(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """`mean ± deviation` of the sample, as a table shows it; `-` of nothing."""
    if not values:
        return "-"
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text + (f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def write(
    out: pathlib.Path,
    name: str,
    options: argparse.Namespace,
    title: str,
    table: list[str],
    script: str = "swish_rnn",
    figure: bool = True,
    **rest,
) -> None:
    """Writes OUT/NAME.md and OUT/NAME.json, and prints the table.

    Args:
        options: with `arguments`, the words of the command line.
        table: lines of Markdown.
        script: name of the command's module.
        figure: whether there is a NAME.png to show.
        rest: of the JSON, besides the command and the commit.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    line = shlex.join(["python", "-m", f"experiments.{script}", *options.arguments])
    record = {"command": line, "commit": commit, **rest}
    write_aside(out / f"{name}.json", (json.dumps(record, indent=1) + "\n").encode())
    text = [f"# {title}", "", f"`{line}` at commit {commit}.", "", *table, ""]
    text += [f"![{title}]({name}.png)", ""] if figure else []
    write_aside(out / f"{name}.md", "\n".join(text).encode())
    print("\n".join(text))
