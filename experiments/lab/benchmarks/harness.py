"""Shared parts of all benchmarks: options, interleaved timing, and reports.

A contender is an implementation under comparison. It may belong to this library or to another
library.

The speed of a machine drifts, because clocks, caches and other load change within minutes.
Therefore every contender runs once in each round, and each round starts with another contender.
Ratios compare times within a round.
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from experiments.studies import table_of, write
from macaron_tf.cli.arguments import Part, argument, count, local_path_argument, together
from macaron_tf.errors import UserError

# Pairs of a setting and its rows from `compare`. Iterating over the pairs runs the measurements.
Tables = Iterable[tuple[str, list[dict]]]

PACKAGES = (
    *("tensorflow", "tensorflow-text", "keras", "jax", "numpy", "tokenizers", "ai-edge-litert"),
    *("torch", "transformers", "keras-hub", "tf-models-official", "ctranslate2"),
    *("onnxruntime", "openvino"),
)


THREADS = count("--threads N", "CPU threads of each contender (default: %(default)s)", 2)


def several(name: str, choices: Iterable[str], text: str, default: list[str]) -> Part:
    """Makes a flag that accepts one or more of `choices`."""
    text = f"{text}: {', '.join(choices)} (default: {' '.join(default) or 'none'})"
    options = {"nargs": "+", "choices": tuple(choices), "default": default}
    return argument(f"{name} NAME", text, **options)


def options(rounds: int = 5, warm_up: int = 2) -> Part:
    """Returns the arguments that all benchmarks share, with their default values."""
    number = "(default: %(default)s)"
    return together(
        count("--rounds N", f"number of timed rounds {number}", rounds),
        count("--warm-up N", f"untimed runs of each contender before them {number}", warm_up),
        count("--seed N", f"random seed of the weights and inputs {number}", 1, minimum=0),
        local_path_argument(
            "--out DIR", "folder for results.md and results.json (default: only print the tables)"
        ),
    )


def interleave(
    contenders: Mapping[str, Callable[[], int]],
    rounds: int,
    warm_up: int,
    cpu_clock: Callable[[], float] = time.process_time,
) -> list[dict]:
    """Times implementations (contenders), with one run of each contender in every round.

    Args:
        contenders: dict mapping the name of a contender to a function, which does the work and
            returns the number of units of work.
        warm_up: number of untimed runs before the rounds, at least 1, for tracing, compilation and
            caches.
        cpu_clock: function that returns the CPU seconds used so far; the default counts this
            process.

    Returns:
        A list with a dict for each contender. The dict has "name", "units" (units of work in a
        run), "seconds" (time of each round) and "cpu_seconds" (CPU time of all threads in each
        round). Other load on the machine affects the CPU time less than the time.
    """
    rows = []
    for name, function in contenders.items():
        print(f"warming up {name}", file=sys.stderr)
        units = [function() for _ in range(warm_up)][-1]
        rows.append({"name": name, "units": units, "seconds": [], "cpu_seconds": []})
    for round_index in range(rounds):
        print(f"round {round_index + 1} of {rounds}", file=sys.stderr)
        first = round_index % len(rows)
        for row in rows[first:] + rows[:first]:
            start, cpu_start = time.perf_counter(), cpu_clock()
            units = contenders[row["name"]]()
            row["seconds"].append(time.perf_counter() - start)
            row["cpu_seconds"].append(cpu_clock() - cpu_start)
            if units != row["units"]:
                counts = f"{units} units, but {row['units']} in its warm-up"
                raise UserError(f"{row['name']} did {counts}")
    return rows


def quartiles(values) -> list[float]:
    """Returns the lower quartile, the median and the upper quartile."""
    return np.percentile(values, [25, 50, 75]).tolist()


def compare(rows: list[dict], reference: str | None = None) -> list[dict]:
    """Returns copies of rows with the fields "rate", "ratio" and "cpu_ratio".

    The new fields have quartiles over the rounds. "rate" is the number of units of work per second.
    "ratio" is the time per unit, divided by the time per unit of the reference in the same round.
    "cpu_ratio" is the corresponding ratio of CPU times. The function also adds "reference", the
    name of the reference, which is the first row by default.
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


def counted(units: int, work: Callable, *arguments) -> Callable[[], int]:
    """Makes a function that calls `work(*arguments)` and returns `units`, for `interleave`."""

    def call() -> int:
        work(*arguments)
        return units

    return call


def timed(contenders: Mapping[str, Callable[[], int]], options: argparse.Namespace) -> list[dict]:
    """Times implementations. The first is the reference (see `interleave` and `compare`)."""
    return compare(interleave(contenders, options.rounds, options.warm_up))


def set_threads(intra_op: int, inter_op: int | None = None) -> None:
    """Sets TensorFlow's intra-op and inter-op threads, before its first operation."""
    tf.config.threading.set_intra_op_parallelism_threads(intra_op)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op or intra_op)


def made_up_texts(seed: int = 0) -> Iterator[str]:
    """Yields an endless sequence of documents in an artificial language.

    A document has 10 paragraphs of 5 sentences, or about 4 KB. Word frequencies follow Zipf's law.
    """
    rng = np.random.default_rng(seed)
    letters = [list("bcdfghjklmnprstvwz"), list("aeiou"), ["", "", "n", "r", "s", "t"]]
    parts = [rng.choice(part, (40_000, 4)) for part in letters]
    syllables = np.char.add(np.char.add(parts[0], parts[1]), parts[2])
    # Frequent words have few syllables.
    words = [
        "".join(row[:count])
        for row, count in zip(syllables, np.linspace(1.2, 4.9, 40_000).astype(int), strict=True)
    ]
    frequencies = 1 / (np.arange(len(words)) + 2.7)  # Zipf-Mandelbrot law
    bounds = np.cumsum(frequencies) / frequencies.sum()
    while True:
        lengths = rng.integers(6, 31, 50)
        drawn = (words[rank] for rank in np.searchsorted(bounds, rng.random(lengths.sum())))
        sentences = []
        for length in lengths:
            parts = (itertools.islice(drawn, n) for n in (length - length // 2, length // 2))
            sentences.append(f"{', '.join(map(' '.join, parts)).capitalize()}.")
        yield "\n".join(" ".join(sentences[start : start + 5]) for start in range(0, 50, 5))


def machine(threads: int) -> dict:
    """Returns a description of the machine and of the installed `PACKAGES`, for the report."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    info, gpus = pathlib.Path("/proc/cpuinfo"), []
    cpu = re.search(r"model name\s*: (.+)", info.read_text() if info.exists() else "")
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        gpus = subprocess.check_output(query, text=True).splitlines()
    return {
        "gpu": gpus[0] if gpus else None,
        "cpu": cpu[1] if cpu else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "load_at_start": os.getloadavg()[0],
        "platform": platform.platform(),
        "versions": versions,
    }


def cell(values: list[float], digits: int) -> str:
    """Formats quartiles as the median, followed by the other two quartiles in parentheses."""
    low, middle, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle} ({low} to {high})"


def publish(options: argparse.Namespace, title: str, unit: str, tables: Tables) -> None:
    """Prints each result when it is measured, then prints the report, and writes it to `--out`.

    The report has a table for each setting. The optional field "more" of a row is a dict mapping
    the name of an additional column to the cell in this column.

    Args:
        unit: unit of work in which speed is measured, such as "tokens".
    """
    facts, records = machine(vars(options).get("threads", 1)), []
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    chips = ", ".join(filter(None, (facts["gpu"], facts["cpu"])))
    lines = [
        f"{chips}; CPUs: {facts['cpus']}; threads per contender: {facts['threads']}; "
        f"load average at the start: {facts['load_at_start']:.1f}. {versions}.",
        "",
        "Cells are medians over interleaved rounds, with quartiles in parentheses. A time ratio is "
        "the time divided by the reference's time in the same round, so a ratio below 1 is faster.",
    ]
    for setting, rows in tables:
        cells = []
        for row in rows:
            more = row.pop("more", {})
            records.append({"setting": setting, **row})
            shown = {"contender": row["name"], f"{unit} per second": cell(row["rate"], 1)}
            shown |= {"time ratio": cell(row["ratio"], 2)}
            cells.append(shown | {"CPU time ratio": cell(row["cpu_ratio"], 2), **more})
            ratio = f"{1 / row['ratio'][1]:.2f} times the rate of {row['reference']}"
            rate = f"{row['rate'][1]:.1f} {unit} per second, {ratio}"
            print(f"{setting}: {row['name']}: {rate}", flush=True)
        lines += ["", f"## {setting}", "", *table_of(cells)]
    if options.out:
        record = {"unit": unit, "machine": facts, "rows": records}
        write(pathlib.Path(options.out), "results", options, title, lines, **record)
    else:
        print("\n".join([f"# {title}", "", *lines]))
