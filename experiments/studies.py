"""Functions that studies share, to run commands and to report results over several seeds.

A report has Markdown tables of means and standard deviations, figures, and a small JSON file with
the numbers of the tables and figures.
"""

import argparse
import concurrent.futures
import contextlib
import io
import itertools
import json
import operator
import os
import pathlib
import queue
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.paths import as_path, write_atomic
from macaron_tf.io.progress import Progress
from macaron_tf.runs.run import write_json
from macaron_tf.runs.versions import versions
from macaron_tf.training.progress import VALIDATION, finite, read_lines

_COLUMNS = 3  # panels in a row of a figure
_TICKS = 8  # maximum number of values on a logarithmic axis at which every value gets a tick
_running: set[subprocess.Popen] = set()  # processes of `command` that have not ended


def validations(run: pathlib.Path | str) -> list[dict]:
    """Returns the validation records in a run's metrics.jsonl."""
    lines = read_lines(as_path(run) / "metrics.jsonl")
    return [line for line in lines if line["kind"] == VALIDATION]


def command(name: str, *arguments: str, log: pathlib.Path | None = None) -> None:
    """Runs `macaron NAME` in a new process, whose output goes to stdout or to the end of `log`."""
    argv = [sys.executable, "-m", "macaron_tf", name, *arguments]
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") if log else contextlib.nullcontext() as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
        _running.add(process)
        status = process.wait()
        _running.remove(process)
    if status:
        last_line = log.read_text(errors="replace").strip().rpartition("\n")[2] if log else ""
        reason = f"read its error message {f'in {log}' if log else 'above'}"
        if last_line.startswith("error: "):
            reason = f"{last_line.removeprefix('error: ')}; see {log}"
        raise UserError(f"`macaron {name} {shlex.join(arguments)}` failed: {reason}")


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM raise SystemExit in the main thread."""
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)


def flags(name: str, *values: str | None) -> list[str]:
    """Returns command-line arguments that repeat the flag `name` for each value except `None`."""
    return [argument for value in values if value is not None for argument in (name, value)]


def read_json(path: pathlib.Path, value_type: type = dict, /, **fields: type) -> Any:
    """Reads a JSON file of a study. `fields` are the expected types of fields that are read."""
    mend = "remove it and give the same command again"
    return storage.read_json(path, value_type, mend=mend, **fields)


def read_or_compute(file: pathlib.Path, settings: dict[str, Any], make: Callable[[], dict]) -> dict:
    """Reads a result with its `settings` from a JSON file, or makes and saves it."""
    if not file.exists():
        write_json(file, {**make(), "settings": settings})
    row = read_json(file, settings=dict)
    saved_settings = row.pop("settings")
    for name, value in json.loads(json.dumps(settings)).items():
        if saved_settings.get(name) != value:
            raise UserError(
                f"{file} was made with {name}={saved_settings.get(name)!r}, but this command has "
                f"{name}={value!r}: give another folder, or restore the earlier value of {name}"
            )
    return row


def run_tasks(jobs: int, tasks: Mapping[str, Callable[[], Any]], shares: int | None = None) -> list:
    """Runs tasks, by the text that is printed before each, in `jobs` threads; returns the results.

    On Linux, each thread uses its own part of the CPUs, of `shares` or `jobs` parts. After an
    exception, no further task begins, and it is raised when the running tasks end. Ctrl-C and
    SIGTERM also end the processes of `command`. Only the main thread may call this function.
    """
    num_shares, share_indices = shares or jobs, queue.SimpleQueue()
    for index in range(jobs):
        share_indices.put(index)

    def take_share() -> None:
        if sys.platform == "linux":
            cpus = sorted(os.sched_getaffinity(0))
            # This applies to the current thread and to processes that the thread starts.
            os.sched_setaffinity(0, cpus[share_indices.get() :: num_shares] or cpus)

    numbers = itertools.count(1)

    def begin(text: str, task: Callable[[], Any]) -> Any:
        print(f"[{next(numbers)}/{len(tasks)}] {text}\n", end="", flush=True)
        return task()

    progress = Progress(f"{jobs} at once", "tasks", len(tasks))
    with (
        # With a single thread, each task shows its own progress.
        progress if jobs > 1 else contextlib.nullcontext(),
        _exit_on_sigterm(),
        concurrent.futures.ThreadPoolExecutor(jobs, initializer=take_share) as pool,
    ):
        futures = [pool.submit(begin, text, task) for text, task in tasks.items()]
        try:
            for finished in concurrent.futures.as_completed(futures):
                finished.result()
                progress.advance()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                for process in tuple(_running):
                    process.terminate()  # lets training save a checkpoint
            raise
    return [future.result() for future in futures]


def grouped(rows: Iterable[dict], *keys: str) -> dict[Any, list[dict]]:
    """Groups rows by the value of a field, or by the tuple of several, in order of occurrence."""
    groups: dict[Any, list[dict]] = {}
    for row in rows:
        groups.setdefault(operator.itemgetter(*keys)(row), []).append(row)
    return groups


def values(rows: Iterable[dict], metric: str) -> list[float]:
    """Returns the values of a metric in all rows where the metric exists and is not `None`."""
    return [row[metric] for row in rows if row.get(metric) is not None]


def curves(rows: Iterable[dict], key: str, x: str, y: str) -> dict:
    """Returns the curves of a figure: names to x values to the y value of each seed.

    A row has the name of its curve in the field `key`, and its points in the field "curve", each
    with `x`, such as "step", and `y`, such as "loss".
    """
    result = {}
    for name, group in grouped(rows, key).items():
        points = grouped(itertools.chain.from_iterable(row["curve"] for row in group), x)
        found = {x_value: values(members, y) for x_value, members in points.items()}
        result[name] = {x_value: ys for x_value, ys in found.items() if ys}
    return result


def cell(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """Formats the mean and, of several values, the standard deviation, after scaling, or "-"."""
    if not values:
        return "-"
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text + (f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def mean_of(rows: Iterable[dict], metric: str, digits: int, scale: float = 1.0) -> str:
    """Formats the mean and standard deviation of the field `metric` over rows (see `cell`)."""
    return cell(values(rows, metric), digits, scale)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table with the column headings `head`."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def table_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the lines of a Markdown table of rows that map headings to cells."""
    head = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    return table(head, ([row.get(heading, "") for heading in head] for row in rows))


def write(
    out: pathlib.Path,
    name: str,
    options: argparse.Namespace,
    title: str,
    lines: Sequence[str],
    **fields,
) -> None:
    """Writes a report to `out`/`name`.md and `out`/`name`.json, and prints the Markdown text.

    The report shows the figure `out`/`name`.png, if there is one. `fields` are added to the JSON
    file.
    """
    record = {"command": options.line, **versions(), **fields}
    write_record(out / f"{name}.json", record)
    text = [f"# {title}", "", f"`{options.line}` by {describe_versions(record)}.", "", *lines]
    figure = out / f"{name}.png"
    text += ["", f"![{title}]({figure.name})", ""] if figure.exists() else [""]
    write_atomic(out / f"{name}.md", "\n".join(text).encode())
    print("\n".join(text))


def write_record(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Writes a JSON file, a line per field or list item, with floats of 7 significant digits."""
    text = json.dumps(finite(record))
    rounded = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.7g}"))
    fields = []
    for name, value in rounded.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            lines = (json.dumps(item, ensure_ascii=False) for item in value)
            text = "[\n{}\n]".format(",\n".join(lines))
        fields += [f"{json.dumps(name)}: {text}"] if value != [] else []
    write_atomic(path, "{{\n{}\n}}\n".format(",\n".join(fields)).encode())


def describe_versions(record: Mapping[str, str]) -> str:
    """Describes the output of `versions`, as "macaron_tf 0.1.0 at commit abc1234" or as unknown."""
    if not record:
        return "an unknown version"
    text = f"macaron_tf {record['version']}"
    text += f" at commit {record['commit']}" if record["commit"] else ""
    if user_commit := record["your_commit"]:
        text += f"; your own files at commit {user_commit}"
    return text


def mean_curves(
    panels: dict[str, dict[str, dict[float, list[float]]]],
    path: pathlib.Path,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: int | None = None,
    levels: Mapping[str, tuple[float, str]] | None = None,
) -> None:
    """Draws curves of means over seeds with error bars, in one or more panels.

    `panels` maps titles to results of `curves`. Half an error bar is the standard deviation of the
    values over seeds. `levels` maps titles to the height and name of a dotted line. `log_y` is the
    base of a logarithmic y axis, whose curves have no error bars, which could end at zero or below.
    """

    def deviation(values: Sequence[float]) -> float:
        return statistics.stdev(values) if len(values) > 1 else 0.0

    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.5 * columns + 1.5, 3.6 * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(len(panels))]
    # The curves of one name have the same colour in all panels.
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            xs = sorted(points)
            means = [statistics.mean(points[x]) for x in xs]
            bars = None if log_y else [deviation(points[x]) for x in xs]
            index = names.index(name)
            style = dict(capsize=2, label=name, color=f"C{index}", ls="-" if index < 10 else "--")
            # Without a marker, a single point would be invisible.
            axis.errorbar(xs, means, bars, marker="o" if len(xs) == 1 else None, **style)
        if level := (levels or {}).get(title):
            height, name = level
            axis.axhline(height, linestyle=":", color="gray", label=name)
        axis.set(title=title, xlabel=x_label, xscale="log" if log_x else "linear")
        ticks = sorted({x for points in lines.values() for x in points})
        if log_x and len(ticks) <= _TICKS:
            axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axis.minorticks_off()
        if log_y:
            axis.set_yscale("log", base=log_y)
        if log_y == 2:
            axis.yaxis.set_major_formatter("{x:g}")  # not as powers
        axis.grid(alpha=0.3)
    for axis in axes[::columns]:
        axis.set_ylabel(y_label)
    labelled = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    handles = {label: handle for pairs in labelled for handle, label in pairs}
    figure.legend(handles.values(), handles, loc="outside right upper")
    write_figure(figure, path)


def write_figure(figure: Figure, path: pathlib.Path) -> None:
    """Writes a figure as a PNG file with 128 colours, a third of the size with all colours."""
    image, small = io.BytesIO(), io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    colours = Image.open(image).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colours.save(small, "png", optimize=True)
    write_atomic(path, small.getvalue())
