"""All benchmarks in short, one after another, and a line of each: ours beside a named peer.

    python -m experiments.benchmarks                                  # a quarter of an hour or so
    python -m experiments.benchmarks --only decoding serving --out DIR

Each runs in a process of its own and writes DIR/NAME/: its report and `log.txt`. A benchmark whose
peer is not installed says so in its line. `python -m experiments.benchmarks.NAME --help` tells of
the long forms. `translation_training` is not among them: it needs a data set and Joey NMT.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.io.paths import write_aside

# Of a results.json: setting, ours, peer, what came of it.
Lines = list[tuple[str, str, str, str]]


def ratios(*ours: str) -> Callable[[Mapping], Lines]:
    """A reader of `write_report`'s results: in each setting the fastest of ours over the peer.

    Args:
        ours: how the names of ours begin. The peer is the contender that all ratios are to.
    """

    def read(results: Mapping) -> Lines:
        lines = []
        for setting, rows in results["settings"].items():
            peer = next(row["name"] for row in rows if row["ratio"] == [1.0, 1.0, 1.0])
            mine = [row for row in rows if row["name"].startswith(ours) and row["name"] != peer]
            if mine:
                best = min(mine, key=lambda row: row["ratio"][1])
                low, middle, high = (f"{value:.2f}" for value in best["ratio"])
                what = f"{middle} of its time ({low} to {high})"
                lines.append((setting, best["name"], peer, what))
        return lines

    return read


def exponents(results: Mapping) -> Lines:
    """A reader of the scaling benchmark's results: how the mixers' costs grow with L."""
    mine, peer = "recurrence alone", "attention alone"
    laws = results["exponents"]["L"]
    lines = []
    for cost, name in (("milliseconds", "time"), ("mebibytes", "memory")):
        if all(cost in laws[mixer] for mixer in (mine, peer)):
            found = (laws[mixer][cost]["upper half"]["exponent"] for mixer in (mine, peer))
            lines.append((f"{name} against L", mine, peer, "L^{:.2f} and L^{:.2f}".format(*found)))
    return lines


@dataclass(frozen=True)
class Subject:
    """A benchmark's short form.

    Attributes:
        module: within this package.
        read: its results to lines.
        options: those that make it short.
    """

    module: str
    read: Callable[[Mapping], Lines]
    options: tuple[str, ...] = ()


SUBJECTS = {
    "recurrence": Subject("recurrence", ratios("native", "xla"), ("--rounds", "5")),
    "blocks": Subject("train_step", ratios("SwishRNN"), ("--rounds", "5")),
    "train_step": Subject(
        "train_step", ratios("ours"), ("--against", "peers", "--rounds", "3", "--steps", "2")
    ),
    "input_pipeline": Subject("input_pipeline", ratios("ours, from text"), ("--rounds", "5")),
    "decoding": Subject("decoding", ratios("ours"), ("--rounds", "3")),
    "prompts": Subject("prompts", ratios("ours"), ("--rounds", "3")),
    "serving": Subject("serving", ratios("SavedModel"), ("--rounds", "3")),
    "scaling": Subject("scaling", exponents),
}


def run_subject(name: str, out: pathlib.Path) -> tuple[int, Lines]:
    """Runs one in a child process, its output into `log.txt`.

    Args:
        name: of `SUBJECTS`.
        out: its folder.

    Returns:
        The child's exit status, and the lines of its results, or one that says why there are none.
    """
    subject = SUBJECTS[name]
    out.mkdir(parents=True, exist_ok=True)
    log, results = out / "log.txt", out / "results.json"
    results.unlink(missing_ok=True)  # an earlier run's
    module = f"experiments.benchmarks.{subject.module}"
    command = [sys.executable, "-m", module, *subject.options, "--out", str(out)]
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    if status == 0:
        return status, subject.read(json.loads(results.read_text()))
    last = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()][-1:]
    why = last[0].removeprefix("error: ") if status == 2 and last else f"failed: see {log}"
    return status, [("not run", "-", "-", why)]


def table(lines: Mapping[str, Lines]) -> str:
    """All lines as Markdown, by the benchmarks' names."""
    rows = [("benchmark", "setting", "ours", "peer", "ours beside the peer"), ("---",) * 5]
    rows += [(name, *line) for name, of_one in lines.items() for line in of_one]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs them; returns 1 where one failed for another reason than a sentence of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", default=list(SUBJECTS), metavar="NAME", help=f"{', '.join(SUBJECTS)}"
    )
    parser.add_argument("--out", default="runs/bench", metavar="DIR", help="default %(default)s")
    options = parser.parse_args(arguments)
    for name in options.only:
        if name not in SUBJECTS:
            raise UserError(f"--only {name}: there are {', '.join(SUBJECTS)}.")
    out = pathlib.Path(options.out)
    lines, failed = {}, False
    for number, name in enumerate(options.only, 1):
        print(f"[{number}/{len(options.only)}] {name} ...", end=" ", flush=True)
        start = time.monotonic()
        status, lines[name] = run_subject(name, out / name)
        failed |= status not in (0, 2)
        print(f"{time.monotonic() - start:.0f} s", flush=True)
    text = table(lines)
    print(f"\n{text}\nreports: {out}/NAME/README.md")
    write_aside(out / "README.md", f"# Benchmarks in short\n\n{text}".encode())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
