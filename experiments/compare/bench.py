"""The command `bench`, which judges blocks on probes and in three small systems, on one page."""

import argparse
import itertools
import pathlib
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments import registry, studies
from experiments.compare import commands
from experiments.compare.arms import Arm
from experiments.compare.probes import LENGTHS, PROBES
from macaron_tf.errors import UserError
from macaron_tf.layers import BLOCKS
from macaron_tf.layers.blocks import block_class

# Probes of the quick form: recall, selection, storage and two kinds of state.
QUICK_PROBES = ("recall", "selective_copying", "compression", "parity", "s5")
WORDS = ("better", "worse", "not decided", "no verdict")  # of verdicts, in the order of the page


class Part(NamedTuple):
    """One of the comparisons of a bench.

    Attributes:
        recipe: recipe of the baseline, which has Transformer blocks.
        rates: learning rates to try.
        flags: further arguments of `macaron compare`.
        metric, digits: name and decimals of the deciding score in compare.json.
    """

    recipe: str
    rates: tuple[str, ...]
    flags: tuple[str, ...]
    metric: str
    digits: int


_TEXT = ("--set", "data.sources=homeassistant:en")
PARTS = {
    "probes": Part("gpt_probe", ("1e-3", "3e-3", "1e-2"), ("--probes",), "accuracy", 0),
    "GPT": Part("gpt_quick", ("1e-3", "2e-3", "4e-3"), _TEXT, "loss", 3),
    "BERT": Part("bert_quick", ("1e-3", "2e-3", "4e-3"), _TEXT, "loss", 3),
    "translation": Part("demo_quick", ("1e-3", "2e-3", "4e-3"), (), "tokenized_bleu", 1),
}


def run(options: argparse.Namespace) -> None:
    """Runs the command `bench`: runs the comparisons that are missing, and writes the page."""
    out, arms = pathlib.Path(options.out), [Arm.parse(text) for text in options.arms]
    for arm in arms:
        if arm.recipe:
            registry.load(arm.recipe)  # says so if a file is missing
            raise UserError(f"{arm.recipe} is no block: give FILE.py:CLASS or {', '.join(BLOCKS)}")
    if "transformer" not in (arm.name for arm in arms):
        arms.insert(0, Arm.parse("transformer"))
    records = {}
    for name, part in PARTS.items():
        members = [arm for arm in arms if name != "translation" or _decodes(arm)]
        if len(members) < 2:
            continue
        texts = [f"{arm.name}={part.recipe}:{','.join(arm.settings)}" for arm in members]
        flags = [*part.flags, "--rates", *part.rates, "--equal", "parameters"]
        if name == "probes":
            flags[1:1] = PROBES if options.full else QUICK_PROBES
        seeds = ["--seeds", *map(str, options.seeds)]
        more = studies.flags("--jobs", options.jobs and str(options.jobs))
        more += studies.flags("--set", *options.set)
        folder = out / name.lower()
        if status := commands.main([str(folder), *texts, *flags, *seeds, *more]):
            raise SystemExit(status)
        records[name] = studies.read_json(folder / "compare.json", rows=list, verdicts=list)
    write(out, options, [arm.name for arm in arms], records)


def _decodes(arm: Arm) -> bool:
    """Returns whether the block of an arm decodes token by token, as a translator needs."""
    return block_class(arm.settings[0].partition("=")[2]).attends


def write(
    out: pathlib.Path, options: argparse.Namespace, names: Sequence[str], records: dict[str, dict]
) -> None:
    """Writes the page from the records of the comparisons, by the names of `PARTS`."""
    probes = studies.grouped(records["probes"]["rows"], "task", "arm")
    tasks = list(dict.fromkeys(task for task, _ in probes))
    _draw(out / "bench.png", names, tasks, probes)
    lines = [
        "Each block replaces that of a Transformer with as many parameters, at its best of three "
        "learning rates. Accuracies in percent at the training length; losses in nats; mean ± "
        "standard deviation over the seeds. docs/bench.md explains the probes.",
        "",
        *studies.table_of([_scores(name, tasks, probes, records) for name in names]),
        "",
        *_verdicts(names[1:], records),
        "",
        "FLOPs of an update, seconds of a run with its validations, and peak memory:",
        "",
        *studies.table_of([_costs(name, records) for name in names]),
        "",
        f"Details: {', '.join(f'{part.lower()}/compare.md' for part in records)}.",
    ]
    studies.write(out, "bench", options, f"{', '.join(names[1:])} on the bench", lines)


def _scores(name: str, tasks: Sequence[str], probes: dict, records: dict[str, dict]) -> dict:
    row = {"block": name}
    row |= {task: studies.mean_of(probes[task, name], "accuracy", 0, 100.0) for task in tasks}
    for part, record in records.items():
        if part != "probes":
            metric, digits = PARTS[part].metric, PARTS[part].digits
            row[f"{part}: {metric}"] = studies.mean_of(_rows(record, name), metric, digits)
    return row


def _rows(record: dict, name: str) -> list[dict]:
    return [row for row in record["rows"] if row["arm"] == name]


def _verdicts(names: Sequence[str], records: dict[str, dict]) -> list[str]:
    """Returns a line for each block, which lists where it is better, worse or not decided."""
    lines = []
    for name in names:
        found = [
            (verdict["word"], verdict["task"] or part)
            for part, record in records.items()
            for verdict in record["verdicts"]
            if verdict["arm"] == name
        ]
        where = {word: [place for one, place in found if one == word] for word in WORDS}
        parts = [f"{word} in {', '.join(places)}" for word, places in where.items() if places]
        lines.append(f"- **{name}**: {'; '.join(parts)}.")
    return lines


def _costs(name: str, records: dict[str, dict]) -> dict[str, str]:
    row = {"block": name}
    for part, record in records.items():
        if rows := _rows(record, name):
            row[f"{part}: GFLOP, seconds, MiB"] = ", ".join(
                f"{statistics.mean(studies.values(rows, key)) * scale:.3g}"
                for key, scale in (("flops_per_update", 1e-9), ("seconds", 1), ("memory_mib", 1))
                if studies.values(rows, key)
            )
    return row


def _draw(path: pathlib.Path, names: Sequence[str], tasks: Sequence[str], probes: dict) -> None:
    """Draws the accuracies as a heat map, a panel for each multiple of the training length."""
    figure = Figure(
        figsize=(2.5 + 1.1 * len(tasks), 0.9 + 1.5 * len(LENGTHS)), layout="constrained"
    )
    panels = figure.subplots(len(LENGTHS), 1, squeeze=False)[:, 0]
    for axis, factor in zip(panels, LENGTHS, strict=True):
        metric = "accuracy" if factor == 1 else f"accuracy_x{factor}"
        values = [
            [statistics.mean(studies.values(probes[task, name], metric)) for task in tasks]
            for name in names
        ]
        axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for (row, line), column in itertools.product(enumerate(values), range(len(tasks))):
            colour = "white" if line[column] < 0.6 else "black"
            text = f"{100 * line[column]:.0f}"
            axis.text(column, row, text, ha="center", va="center", color=colour)
        labels = [task.replace("_", "\n") for task in tasks] if axis is panels[-1] else []
        axis.set_xticks(range(len(tasks)) if labels else [], labels)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(f"accuracy in percent at {factor} times the training length")
    studies.write_figure(figure, path)
