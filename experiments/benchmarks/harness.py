"""The frame of the benchmarks: options, interleaved timing of contenders, and the report.

Machines drift: clocks, caches and neighbours change within minutes. So contenders take turns
within every round, the first turn going round as well, and are compared round by round.
"""

import argparse
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from macaron_tf.errors import UserError


def benchmark_parser(
    name: str, description: str, rounds: int, warm_up: int | None = None
) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks share.

    Args:
        name: of the module.
        description: its docstring.
        rounds: timed rounds by default.
        warm_up: untimed turns before them by default; None = no option.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_number(parser, "--rounds", rounds, "timed rounds")
    if warm_up is not None:
        add_number(parser, "--warm-up", warm_up, "untimed turns before them")
    add_number(parser, "--seed", 1, "of weights and inputs", least=0)
    parser.add_argument(
        "--out", metavar="DIR", help="write README.md, results.json and results.png there"
    )
    return parser


def add_number(
    parser: argparse.ArgumentParser, flag: str, default, text: str, least=1, kind=int, **more
) -> None:
    """Adds an option for a number, or with `nargs` several; others get one sentence.

    Args:
        default: value, list of values, or None.
        text: help; the default is added.
        least: the smallest value.
        kind: int or float.
    """

    def converted(given: str):
        try:
            value = kind(given)
        except ValueError:
            value = None
        if value is None or not value >= least:
            what = "a whole number of " if kind is int else ""
            raise UserError(f"{flag} {given}: give {what}{least} or more.")
        return value

    shown = " ".join(map(str, default)) if isinstance(default, list) else default
    text += "" if default is None else f" (default {shown})"
    parser.add_argument(flag, type=converted, default=default, help=text, **more)


def say(line: str) -> None:
    """Reports progress on stderr."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Samples:
    """What one contender took, a number a round.

    Attributes:
        units: work of one run, such as tokens.
        seconds: by the clock.
        cpu_seconds: of the process, all threads: what load from elsewhere changes less.
    """

    units: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


def interleave(
    contenders: Mapping[str, Callable[[], int]],
    rounds: int,
    warm_up: int,
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, Samples]:
    """Runs every contender once a round.

    Args:
        contenders: by name, functions that do the work and return its units, always the same.
        rounds: timed rounds, 1 or more.
        warm_up: untimed runs of each before (traces, compilations, caches), 1 or more.
        cpu_clock: seconds of CPU so far; this process's, where contenders work in it.

    Raises:
        UserError: a contender's units vary.
    """
    samples = {}
    for name, run in contenders.items():
        say(f"warming up {name}")
        samples[name] = Samples([run() for _ in range(warm_up)][-1])
    names = list(contenders)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start, cpu_start = time.perf_counter(), cpu_clock()
            units = contenders[name]()
            samples[name].seconds.append(time.perf_counter() - start)
            samples[name].cpu_seconds.append(cpu_clock() - cpu_start)
            if units != samples[name].units:
                raise UserError(
                    f"{name} did {units} units of work after {samples[name].units} in its "
                    "warm-up: its times cannot be compared."
                )
    return samples


def quartiles(values) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return [float(value) for value in np.percentile(values, [25, 50, 75])]


def summary(samples: Mapping[str, Samples], reference: str) -> list[dict]:
    """A row a contender: rates and, round by round, its time over the reference's.

    Returns:
        For each contender "name", "units", "rate" (units a second, by the clock), "ratio" and
        "cpu_ratio" (of the time for a unit, its own / the reference's): quartiles all three; and
        the raw "seconds" and "cpu_seconds".
    """
    base = samples[reference]

    def ratio(mine: list[float], theirs: list[float], units: int) -> list[float]:
        return quartiles(np.divide(mine, units) / np.divide(theirs, base.units))

    return [
        {
            "name": name,
            "units": one.units,
            "rate": quartiles(one.units / np.array(one.seconds)),
            "ratio": ratio(one.seconds, base.seconds, one.units),
            "cpu_ratio": ratio(one.cpu_seconds, base.cpu_seconds, one.units),
            "seconds": one.seconds,
            "cpu_seconds": one.cpu_seconds,
        }
        for name, one in samples.items()
    ]


def percentiles(seconds) -> dict[str, float]:
    """What half, 95% and 99% of the answers stay below: milliseconds by "p50", "p95", "p99"."""
    shares = (50, 95, 99)
    values = 1e3 * np.percentile(seconds, shares)
    return {f"p{share}": float(value) for share, value in zip(shares, values, strict=True)}


def set_threads(within: int, between: int | None = None) -> None:
    """TensorFlow's threads, before its first operation.

    Args:
        within: an operation.
        between: operations that run at once; as many where it is None.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(within)
    tf.config.threading.set_inter_op_parallelism_threads(within if between is None else between)


def machine(threads: int, packages: tuple[str, ...]) -> dict:
    """The facts that a figure is worth nothing without.

    Args:
        threads: what every contender was told to use.
        packages: whose versions count; those not installed are left out.
    """
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "load_at_start": os.getloadavg()[0],
        "platform": platform.platform(),
        "versions": versions,
    }


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def heading(title: str, facts: Mapping) -> list[str]:
    """The first lines of a report: its title, and the facts of `machine`."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return [
        f"# {title}",
        "",
        f"{facts['cpu']}, {facts['cpus']} CPUs, {facts['threads']} threads each; load average "
        f"{facts['load_at_start']:.1f} at the start. {versions}.",
        "",
    ]


def markdown(title: str, facts: Mapping, tables: Mapping[str, list[dict]], unit: str) -> str:
    """The report as text: facts, then a table for each setting.

    Args:
        title: heading.
        facts: from `machine`.
        tables: `summary`'s rows by the name of a setting; where they also have "latency_ms", from
            `percentiles`, so has the table.
        unit: what was counted, "tokens".
    """
    lines = [
        *heading(title, facts),
        "Medians of interleaved rounds, quartiles in brackets. A ratio is time over the "
        "reference's in the same round: below 1 is faster.",
    ]
    for setting, rows in tables.items():
        names = ["contender", f"{unit} a second", "time ratio", "CPU time ratio"]
        timed = "latency_ms" in rows[0]
        if timed:
            names.append(f"{' / '.join(rows[0]['latency_ms'])}, ms")
        lines += ["", f"## {setting}", "", _line(names), _line(["---"] * len(names))]
        for row in rows:
            cells = [row["name"], _cell(row["rate"], 1)]
            cells += [_cell(row[ratio], 2) for ratio in ("ratio", "cpu_ratio")]
            if timed:
                cells.append(" / ".join(f"{value:.1f}" for value in row["latency_ms"].values()))
            lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(values: list[float], digits: int) -> str:
    low, middle, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle} ({low} to {high})"


def publish(
    directory: str | None, title: str, facts: Mapping, tables: Mapping[str, list[dict]], unit: str
) -> None:
    """Prints the report and, given a directory, writes its three files there."""
    print(markdown(title, facts, tables, unit))
    if not directory:
        return
    content = {"title": title, "unit": unit, "machine": facts, "settings": tables}
    text = markdown(title, facts, tables, unit) + "\n![rates](results.png)\n"
    save(directory, content, text, _plot(title, tables, unit))
    print(f"written to {directory}")


def save(directory: str | os.PathLike, content: Mapping, text: str, figure) -> None:
    """Writes a report's three files, each whole.

    Args:
        directory: where.
        content: for `results.json`.
        text: for `README.md`.
        figure: a matplotlib Figure, for `results.png`.
    """
    from macaron_tf.io.paths import write_aside

    directory = pathlib.Path(directory)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_aside(directory / "results.json", (json.dumps(content, indent=1) + "\n").encode())
    write_aside(directory / "README.md", text.encode())
    write_aside(directory / "results.png", image.getvalue())


def _plot(title: str, tables: Mapping[str, list[dict]], unit: str):
    from matplotlib.figure import Figure

    bars = max(len(rows) for rows in tables.values())
    figure = Figure(figsize=(6 * len(tables), 1.6 + 0.3 * bars), layout="constrained")
    for place, (setting, rows) in enumerate(tables.items(), 1):
        axes = figure.add_subplot(1, len(tables), place)
        low, middle, high = np.array([row["rate"] for row in rows]).T
        axes.barh([row["name"] for row in rows], middle, xerr=[middle - low, high - middle])
        axes.invert_yaxis()
        axes.set_title(textwrap.fill(setting, 44), fontsize="medium")
        axes.set_xlabel(f"{unit} a second")
    figure.suptitle(title)
    return figure
