"""What all benchmarks share: options, interleaved timing of contenders, and the report.

The speed of a machine drifts: clocks, caches and other users' load change within minutes. So the
contenders take turns within every round, each round starts with another contender, and contenders
are compared round by round.
"""

import argparse
import contextlib
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from experiments.run import write_json
from experiments.studies import table, write_figure
from macaron_tf.cli.arguments import Parser, Part, argument, count, local_place, together
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError
from macaron_tf.io.paths import write_aside

# Settings and their rows, from `compare`. Each is measured when the iterator reaches it.
Tables = Iterable[tuple[str, list[dict]]]
# Made from all tables: more fields of results.json, a section of the report, and the figure.
Summary = tuple[dict, str, Figure]

DROPOUT = count("--dropout", "dropout rate everywhere in the models", 0.1, least=0.0, below=1)
DTYPE_POLICY = argument(
    "--dtype-policy",
    "Keras policy of all contenders",
    default="float32",
    choices=("float32", "mixed_bfloat16"),
)


def several(name: str, choices: Iterable[str], text: str, default: list[str] | None = None) -> Part:
    """A flag that takes one or more of `choices`; all of them by default."""
    options = {"nargs": "+", "metavar": "NAME", "choices": tuple(choices)}
    default = list(choices) if default is None else default
    return argument(name, text, default=default, **options)


class Benchmark(Parser):
    """The command of a benchmark.

    Args:
        name: name of the module, whose docstring is `description`.
        unit: what the contenders count, such as "tokens".
        packages: packages whose versions the report has; see `machine`.
        parts: options of this benchmark, besides those that all benchmarks have.
        rounds: default number of timed rounds.
        warm_up: default number of untimed runs before them.
        threads: default number of threads of every contender; None: one, without a flag.
    """

    def __init__(
        self,
        name: str,
        description: str,
        unit: str,
        packages: Sequence[str],
        *parts: Part,
        rounds: int = 5,
        warm_up: int = 2,
        threads: int | None = 2,
    ):
        super().__init__(
            prog=f"python -m experiments.lab.benchmarks.{name}",
            description=description,
        )
        self.unit, self.packages = unit, packages
        self.set_defaults(threads=1)
        together(
            count("--rounds", "timed rounds", rounds),
            count("--warm-up", "untimed runs of each contender before them", warm_up),
            count("--seed", "seed of weights and inputs", 1, least=0),
            *([count("--threads", "threads of every contender", threads)] if threads else []),
            local_place("--out DIR", "folder for README.md, results.json and results.png"),
            *parts,
        )(self)
        for action in self._actions:
            if action.default not in (None, False, [], argparse.SUPPRESS):
                action.help += " (default %(default)s)"

    def measures(
        self, title: str, summary: Callable[[Mapping[str, list[dict]]], Summary] | None = None
    ) -> Callable[[Callable[..., Tables]], Callable[..., int]]:
        """Decorator: makes a `main` that prints and writes the `Tables` of a function of options.

        Args:
            title: title of the report, in which `{option}` stands for an option's value.
            summary: makes the `Summary` of all tables; None: a figure of their rates.
        """

        def wrap(measured: Callable[[argparse.Namespace], Tables]) -> Callable[..., int]:
            @exit_on_user_error
            def main(arguments: list[str] | None = None) -> None:
                options = self.parse_args(arguments)
                facts = machine(options.threads, self.packages)
                shown = title.format(**vars(options))
                publish(options.out, shown, facts, measured(options), self.unit, summary)

            return main

        return wrap


def say(line: str) -> None:
    """Reports progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def interleave(
    contenders: Mapping[str, Callable[[], int]],
    rounds: int,
    warm_up: int,
    cpu_clock: Callable[[], float] = time.process_time,
) -> list[dict]:
    """Runs every contender once in each round.

    Args:
        contenders: functions that do the work and return the number of its units.
        warm_up: untimed runs of each before the rounds, for tracing, compilation and caches.
        cpu_clock: CPU seconds used so far. The default is right for work in this process.

    Returns:
        One row for each contender: "name", "units" of one run, and for each round "seconds" by the
        clock and "cpu_seconds" of all threads. Other load on the machine changes the latter less.

    Raises:
        UserError: a contender returns another number of units than in its warm-up.
    """
    rows = []
    for name, run in contenders.items():
        say(f"warming up {name}")
        units = [run() for _ in range(warm_up)][-1]
        rows.append({"name": name, "units": units, "seconds": [], "cpu_seconds": []})
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        first = number % len(rows)
        for row in rows[first:] + rows[:first]:
            start, cpu_start = time.perf_counter(), cpu_clock()
            units = contenders[row["name"]]()
            row["seconds"].append(time.perf_counter() - start)
            row["cpu_seconds"].append(cpu_clock() - cpu_start)
            if units != row["units"]:
                raise UserError(
                    f"{row['name']} did {units} units of work after {row['units']} in its warm-up: "
                    "its times cannot be compared."
                )
    return rows


def quartiles(values) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return np.percentile(values, [25, 50, 75]).tolist()


def compare(rows: list[dict], reference: str | None = None) -> list[dict]:
    """Adds quartiles over rounds of "rate", "ratio" and "cpu_ratio" to rows of `interleave`.

    "rate" is units per second. The ratios divide a row's time for a unit by the reference's in the
    same round: wall-clock time in "ratio", CPU time in "cpu_ratio".

    Args:
        reference: name of the reference's row; None: the first row.
    """
    base = next(row for row in rows if reference in (None, row["name"]))

    def ratio(row: dict, key: str) -> list[float]:
        return quartiles(np.divide(row[key], row["units"]) / np.divide(base[key], base["units"]))

    return [
        {
            **row,
            "rate": quartiles(row["units"] / np.array(row["seconds"])),
            "reference": base["name"],
            "ratio": ratio(row, "seconds"),
            "cpu_ratio": ratio(row, "cpu_seconds"),
        }
        for row in rows
    ]


def counted(units: int, work: Callable, *given) -> Callable[[], int]:
    """A contender that calls `work(*given)` and returns `units`."""

    def run() -> int:
        work(*given)
        return units

    return run


def timed(contenders: Mapping[str, Callable[[], int]], options: argparse.Namespace) -> list[dict]:
    """Times contenders by `--rounds` and `--warm-up`; rows of `compare` against the first one."""
    return compare(interleave(contenders, options.rounds, options.warm_up))


def set_threads(within: int, between: int | None = None) -> None:
    """Sets TensorFlow's threads within and between operations; call it before any operation."""
    tf.config.threading.set_intra_op_parallelism_threads(within)
    tf.config.threading.set_inter_op_parallelism_threads(between or within)


def made_up_texts(seed: int = 0) -> Iterator[str]:
    """Yields documents of a made-up language without end: 10 paragraphs of five sentences, 5 KB."""
    rng = np.random.default_rng(seed)
    letters = [list("bcdfghjklmnprstvwz"), list("aeiou"), ["", "", "n", "r", "s", "t"]]
    parts = [rng.choice(part, (40_000, 4)) for part in letters]
    syllables = np.char.add(np.char.add(parts[0], parts[1]), parts[2])
    # Frequent words are short.
    words = [
        "".join(row[:count])
        for row, count in zip(syllables, np.linspace(1.2, 4.9, 40_000).astype(int), strict=True)
    ]
    share = 1 / (np.arange(len(words)) + 2.7)  # Mandelbrot's form of Zipf's law
    bounds = np.cumsum(share) / share.sum()
    while True:
        lengths = rng.integers(6, 31, (10, 5))
        drawn = iter(np.searchsorted(bounds, rng.random(lengths.sum())))
        yield "\n".join(
            " ".join(
                ", ".join(
                    " ".join(words[next(drawn)] for _ in range(part))
                    for part in (count - count // 2, count // 2)
                ).capitalize()
                + "."
                for count in paragraph
            )
            for paragraph in lengths
        )


def machine(threads: int, packages: Iterable[str]) -> dict:
    """Facts about the machine that belong to every measured number, for the report.

    Packages that are not installed are left out.
    """
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    info = pathlib.Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.+)", info.read_text() if info.exists() else "")
    return {
        "gpu": gpu(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "load_at_start": os.getloadavg()[0],
        "platform": platform.platform(),
        "versions": versions,
    }


def gpu() -> str | None:
    """The name of the first NVIDIA GPU; None without one."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return found.splitlines()[0] if found else None


def heading(title: str, facts: Mapping) -> str:
    """The first lines of a report: its title, and the facts of `machine`."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    chips = ", ".join(filter(None, (facts.get("gpu"), facts["cpu"])))
    return (
        f"# {title}\n\n{chips}, {facts['cpus']} CPUs, {facts['threads']} threads each; load "
        f"average {facts['load_at_start']:.1f} at the start. {versions}.\n\n"
    )


def markdown(title: str, facts: Mapping, tables: Mapping[str, list[dict]], unit: str) -> str:
    """The report as text: facts, then a table for each setting.

    Args:
        tables: rows from `compare` by setting; "more" of a row has further cells by column name.
    """
    text = heading(title, facts) + (
        "Medians of interleaved rounds, quartiles in brackets. A ratio is time over the "
        "reference's in the same round: below 1 is faster.\n"
    )
    columns = {"rate": f"{unit} a second", "ratio": "time ratio", "cpu_ratio": "CPU time ratio"}
    for setting, rows in tables.items():
        names = ["contender", *columns.values(), *rows[0].get("more", {})]
        cells = [
            [
                row["name"],
                *(cell(row[key], 1 if key == "rate" else 2) for key in columns),
                *row.get("more", {}).values(),
            ]
            for row in rows
        ]
        text += "\n".join(["", f"## {setting}", "", *table(names, cells), ""])
    return text


def cell(values: list[float], digits: int) -> str:
    """The median, and the quartiles in brackets."""
    low, middle, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle} ({low} to {high})"


def publish(
    directory: str | None,
    title: str,
    facts: Mapping,
    tables: Tables,
    unit: str,
    summary: Callable[[Mapping[str, list[dict]]], Summary] | None = None,
) -> None:
    """Prints each table when it is measured, then the report; writes both into `directory`."""
    measured = {}
    for setting, rows in tables:
        measured[setting] = rows
        for row in rows:
            print(
                f"{setting}: {row['name']}: {row['rate'][1]:.1f} {unit} a second, "
                f"{1 / row['ratio'][1]:.2f} times {row['reference']}'s rate, CPU time "
                f"ratio {row['cpu_ratio'][1]:.2f}",
                flush=True,
            )
    more, section, figure = summary(measured) if summary else ({}, "", None)
    text = markdown(title, facts, measured, unit) + section
    print(text)
    if directory:
        content = {"title": title, "unit": unit, "machine": facts, "settings": measured, **more}
        # Saved before the figure is drawn, in case drawing fails.
        save(directory, content, text + "\n![results](results.png)\n")
        picture = pathlib.Path(directory, "results.png")
        write_figure(figure or _plot(title, measured, unit), picture, dpi=120)


def save(
    directory: str | os.PathLike, content: Mapping, text: str, figure: Figure | None = None
) -> None:
    """Writes `results.json`, `README.md` and `results.png`, each atomically."""
    directory = pathlib.Path(directory)
    write_json(directory / "results.json", content)
    write_aside(directory / "README.md", text.encode())
    if figure:
        write_figure(figure, directory / "results.png", dpi=120)
    print(f"written to {directory}")


def _plot(title: str, tables: Mapping[str, list[dict]], unit: str) -> Figure:
    bars = max(len(rows) for rows in tables.values())
    figure = Figure(figsize=(6 * len(tables), 1.6 + 0.3 * bars), layout="constrained")
    for panel, (setting, rows) in enumerate(tables.items(), 1):
        axes = figure.add_subplot(1, len(tables), panel)
        low, middle, high = np.array([row["rate"] for row in rows]).T
        axes.barh([row["name"] for row in rows], middle, xerr=[middle - low, high - middle])
        axes.invert_yaxis()
        axes.set_title(textwrap.fill(setting, 44), fontsize="medium")
        axes.set_xlabel(f"{unit} a second")
    figure.suptitle(title)
    return figure
