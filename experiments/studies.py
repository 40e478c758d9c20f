"""Shared parts of studies: the commands that they run, means and spread over seeds as Markdown, the
figures and the JSON of every number beside them.
"""

import argparse
import concurrent.futures
import contextlib
import io
import itertools
import json
import os
import pathlib
import queue
import shlex
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.run import write_json
from macaron_tf import __version__
from macaron_tf.command_names import as_typed
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.paths import as_path, write_aside
from macaron_tf.io.progress import Progress
from macaron_tf.plug_ins import trusts_code
from macaron_tf.training.progress import VALIDATION, read_lines

_COLUMNS = 3  # panels of a figure beside each other
_TICKS = 8  # values of a logarithmic axis that are all named
_ROOT = pathlib.Path(__file__).parents[1]  # of a checkout, or a wheel's folder of commands


def validations(run: pathlib.Path | str) -> list[dict]:
    """The lines of a run's validations, of its `metrics.jsonl`."""
    lines = read_lines(as_path(run) / "metrics.jsonl")
    return [line for line in lines if line["kind"] == VALIDATION]


def grid(
    tasks: Sequence[str], out: pathlib.Path, *more: str, log: pathlib.Path | None = None
) -> list[dict]:
    """`finetune grid` of some tasks; its `experiments.finetune.grid.combinations`."""
    command("finetune", "grid", *tasks, str(out), *more, log=log)
    return read_json(out / "grid.json", combinations=list)["combinations"]


def tuning(options: argparse.Namespace) -> list[str]:
    """The words for `finetune grid` of the data and of `cli.finetuning`, but for the tasks."""
    words = [*flags("--data-dir", options.data_dir), *flags("--source", options.source)]
    return [*words, *flags("--set", *options.finetune_set)]


def command(script: str, *words: str, log: pathlib.Path | None = None) -> None:
    """Runs a command of experiments in a process of its own: only its seed decides the result.

    Args:
        log: file that its output is appended to; None = stdout.
    """
    trust = ["--trust-code"] if trusts_code() else []
    line = [sys.executable, "-m", f"experiments.{script}", *words, *trust]
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") if log else contextlib.nullcontext() as output:
        process = subprocess.Popen(line, stdout=output, stderr=output)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()  # a training saves, which `subprocess.run` would kill
            process.wait()
            raise
    if status:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log else ""
        why = f"read its message {f'in {log}' if log else 'above'}"
        if last.startswith("error: "):
            why = f"{last.removeprefix('error: ')}; see {log}"
        raise UserError(f"`python -m experiments.{script} {shlex.join(words)}` failed: {why}")


def flags(name: str, *values: str | None) -> list[str]:
    """The words of an option that is given once for each value; None gives none."""
    return [word for value in values if value is not None for word in (name, value)]


def read_json(path: pathlib.Path, kind: type = dict, /, **fields: type) -> Any:
    """The content of a JSON file that a study keeps, with fields of some types."""
    return storage.read_json(path, kind, mend="remove it and give the same command again", **fields)


def kept(file: pathlib.Path, settings: dict[str, Any], make: Callable[[], dict]) -> dict:
    """A result in a file beside the settings that it was made with, made unless it is there.

    A file of other settings is refused.
    """
    if not file.exists():
        write_json(file, {**make(), "settings": settings})
    row = read_json(file, settings=dict)
    earlier = row.pop("settings")
    for name, value in json.loads(json.dumps(settings)).items():
        if earlier.get(name) != value:
            raise UserError(
                f"{file} was made with {name} {earlier.get(name)!r}, not {value!r}: give another "
                "folder, or what it was made with"
            )
    return row


def at_once(jobs: int, tasks: Mapping[str, Callable[[], Any]], shares: int | None = None) -> list:
    """Runs tasks in `jobs` threads, each on its share of the CPUs; their results, in order.

    A task's error cancels those that have not begun.

    Args:
        tasks: by the words of their lines of progress.
        shares: parts that the CPUs are shared into; None = `jobs`.
    """
    parts, numbers = shares or jobs, queue.SimpleQueue()
    for number in range(jobs):
        numbers.put(number)

    def take_share() -> None:
        if sys.platform == "linux":
            cpus = sorted(os.sched_getaffinity(0))
            # For this thread and the processes that it starts.
            os.sched_setaffinity(0, cpus[numbers.get() :: parts] or cpus)

    def timed(task: Callable[[], Any]) -> tuple[Any, float]:
        began = time.monotonic()
        return task(), (time.monotonic() - began) / 60

    spent = []  # minutes of each task that had work to do
    # A single task shows its own progress.
    several = Progress(f"{len(tasks)} tasks, {jobs} at once") if jobs > 1 else None
    with (
        several or contextlib.nullcontext(),
        concurrent.futures.ThreadPoolExecutor(jobs, initializer=take_share) as pool,
    ):
        waiting = {pool.submit(timed, task): words for words, task in tasks.items()}
        try:
            for done, finished in enumerate(concurrent.futures.as_completed(waiting), 1):
                minutes = finished.result()[1]
                spent += [minutes] if minutes > 0.1 else []
                left = ""
                if spent:
                    minutes = (len(tasks) - done) / jobs * statistics.mean(spent)
                    left = f"; {minutes:.0f} min left at most"
                print(f"[{done}/{len(tasks)}] {waiting[finished]}{left}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result()[0] for future in waiting]


def grouped(rows: Iterable[dict], key: str) -> dict[Any, list[dict]]:
    """Rows by their value of a key, in the order of the values' first rows."""
    found: dict[Any, list[dict]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def values(rows: Iterable[dict], metric: str) -> list[float]:
    """A metric of the rows that have it."""
    return [row[metric] for row in rows if row.get(metric) is not None]


def curves(rows: Iterable[dict], key: str, x: str, y: str, curve: str | None = None) -> dict:
    """The lines of a figure, a value of `key` each: the values of several seeds at each x.

    Args:
        curve: key of a row's points; None = the validations of its "run".
    """
    found = {}
    for name, mine in grouped(rows, key).items():
        lines = (row[curve] if curve else validations(row["run"]) for row in mine)
        points = grouped(itertools.chain.from_iterable(lines), x)
        found[name] = {at: values(each, y) for at, each in points.items() if values(each, y)}
    return found


def cell(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """`mean ± deviation` of the sample, as a table shows it; `-` of nothing."""
    if not values:
        return "-"
    text = f"{scale * statistics.mean(values):.{digits}f}"
    return text + (f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def mean_of(rows: Iterable[dict], metric: str, digits: int, scale: float = 1.0) -> str:
    """The `cell` of the rows' values of a metric."""
    return cell(values(rows, metric), digits, scale)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def write(
    out: pathlib.Path,
    name: str,
    script: str,
    options: argparse.Namespace,
    title: str,
    lines: Sequence[str],
    figure: bool = True,
    **rest,
) -> None:
    """Writes OUT/NAME.md and OUT/NAME.json, and prints the report.

    Args:
        script: name of the command's module.
        figure: whether there is a NAME.png to show.
        rest: of the JSON, besides the command and the versions.
    """
    line = as_typed(shlex.join(["python", "-m", f"experiments.{script}", *options.arguments]))
    record = {"command": line, **_versions(), **rest}
    write_json(out / f"{name}.json", record)
    made = f"`{line}` by macaron_tf {record['version']}"
    made += f" at commit {record['commit']}" if record["commit"] else ""
    made += f"; your own files at commit {theirs}" if (theirs := record["your_commit"]) else ""
    text = [f"# {title}", "", f"{made}.", "", *lines, ""]
    text += [f"![{title}]({name}.png)", ""] if figure else []
    write_aside(out / f"{name}.md", "\n".join(text).encode())
    print("\n".join(text))


def _versions() -> dict[str, str]:
    """Our version, with the commit of a checkout, and the commit of the user's own repository."""
    ours, here = (_ROOT / ".git").exists(), pathlib.Path()
    top = _git(here, "rev-parse", "--show-toplevel")[1]
    theirs = top and not (ours and os.path.samefile(top, _ROOT))
    found = commit() if ours else "", commit(here) if theirs else ""
    return dict(zip(("version", "commit", "your_commit"), (__version__, *found), strict=True))


def commit(folder: pathlib.Path = _ROOT) -> str:
    """The commit that is checked out in a folder, in short; "" without a repository or git.

    It ends in `-dirty` where a file was edited since. A run writes into `experiments/results`
    itself, so edits there do not count.
    """
    short = _git(folder, "describe", "--always", "--exclude", "*")[1]
    edits = "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)experiments/results"
    return short and short + "-dirty" * (_git(folder, *edits)[0] == 1)


def _git(folder: pathlib.Path, *words: str) -> tuple[int, str]:
    """The exit status and the output of git in a folder."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except OSError as error:  # there is no git
        return error.errno or -1, ""
    return done.returncode, done.stdout.strip()


def mean_curves(
    panels: dict[str, dict[str, dict[float, list[float]]]],
    path: pathlib.Path,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    bar: Callable[[Sequence[float]], float] | None = None,
    levels: Mapping[str, tuple[float, str]] = types.MappingProxyType({}),
) -> None:
    """Draws a panel a title, a line a name.

    Args:
        panels: title -> name -> x -> the values of several seeds.
        bar: half the length of a bar, of the values of several seeds; their deviation when None.
        levels: height and name of a dotted line in a panel, by the panel's title.
    """
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.5 * columns + 1.5, 3.6 * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(len(panels))]
    # A name has the same colour in every panel.
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            xs = sorted(points)
            means = [statistics.mean(points[x]) for x in xs]
            bars = [(bar or _deviation)(points[x]) for x in xs]
            style = dict(capsize=2, label=name, color=f"C{names.index(name)}")
            # A line of one point is not seen.
            axis.errorbar(xs, means, bars, marker="o" if len(xs) == 1 else None, **style)
        if title in levels:
            height, name = levels[title]
            axis.axhline(height, linestyle=":", color="gray", label=name)
        axis.set(title=title, xlabel=x_label, xscale="log" if log_x else "linear")
        ticks = sorted({x for points in lines.values() for x in points})
        if log_x and len(ticks) <= _TICKS:
            axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axis.minorticks_off()
        axis.set_yscale("log" if log_y else "linear")
        axis.grid(alpha=0.3)
    for axis in axes[::columns]:
        axis.set_ylabel(y_label)
    max(axes, key=lambda axis: len(axis.containers)).legend()
    write_figure(figure, path)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def write_figure(figure: Figure, path: pathlib.Path, dpi: int = 110) -> None:
    """Writes a figure as PNG."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=dpi)
    write_aside(path, image.getvalue())
