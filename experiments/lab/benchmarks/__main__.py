"""Runs short forms of several benchmarks and compares this library with other libraries.

    python -m experiments.lab.benchmarks                              # about 15 minutes
    python -m experiments.lab.benchmarks --only decoding serving --out DIR

Each benchmark runs in its own process and writes its report and `log.txt` to DIR/NAME/. If a
benchmark cannot run, for example because a library is missing, the summary has its error message.
`python -m experiments.lab.benchmarks.NAME --help` describes the long form of a benchmark.
"""

import argparse
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping

from experiments import command_line as cli
from experiments.studies import grouped, table
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json, write_atomic

# Lines of the summary. A line has the setting, the name of this library's implementation, the name
# of the implementation to compare with (peer), and a text that compares both.
Lines = list[tuple[str, str, str, str]]


def ratios(results: Mapping, prefix: str) -> Lines:
    """Makes summary lines with the time of this library's fastest implementation.

    The time is relative to the reference, which is an implementation in another library or this
    library's baseline. The result has a line for each setting in which this library has an
    implementation besides the reference. The names of this library's implementations begin with
    `prefix`.
    """
    lines = []
    for setting, rows in grouped(results["rows"], "setting").items():
        peer = next(row["name"] for row in rows if row["ratio"] == [1.0, 1.0, 1.0])
        candidates = [row for row in rows if row["name"].startswith(prefix) and row["name"] != peer]
        if candidates:
            best = min(candidates, key=lambda row: row["ratio"][1])
            text = "{1:.2f} of its time ({0:.2f} to {2:.2f})".format(*best["ratio"])
            lines.append((setting, best["name"], peer, text))
    return lines


# Dict mapping a benchmark to a pair: the prefix of the names of this library's implementations, and
# the command line of the short form.
SUBJECTS = {
    "blocks": ("SwishRNN", "train_step --rounds 5"),
    "train_step": ("ours", "train_step --against peers --rounds 3 --steps 2"),
    "input_pipeline": ("ours, from text", "input_pipeline --rounds 5"),
    "decoding": ("ours", "decoding --rounds 3"),
    "prompts": (
        "ours",
        "decoding --model gpt2 --size mini --source-length 256 --batch-sizes 1 8 --rounds 3",
    ),
    "serving": ("SavedModel", "serving --rounds 3"),
}
_NAMES = ", ".join(SUBJECTS)


def run_subject(name: str, out: pathlib.Path) -> tuple[int, Lines]:
    """Runs the short form of a benchmark in a child process, whose output goes to `log.txt`.

    Returns the exit status and the summary lines. If the status is not 0, there is only one summary
    line, which has the error message or names the log.
    """
    prefix, command_line = SUBJECTS[name]
    module, *arguments = command_line.split()
    out.mkdir(parents=True, exist_ok=True)
    log, results = out / "log.txt", out / "results.json"
    results.unlink(missing_ok=True)  # removes the results of an earlier run
    command = [
        sys.executable,
        "-m",
        f"experiments.lab.benchmarks.{module}",
        *arguments,
        "--out",
        str(out),
    ]
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    if status == 0:
        return status, ratios(read_json(results, mend="run the benchmark again"), prefix)
    last = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()][-1:]
    reason = last[0].removeprefix("error: ") if status == 2 and last else f"failed: see {log}"
    return status, [("not run", "-", "-", reason)]


def run(options: argparse.Namespace) -> int:
    """Runs the benchmarks and writes the summary. Returns 1 if a benchmark failed, otherwise 0.

    A benchmark that only refused to run, for example because a library is missing, does not count
    as failed.
    """
    for name in options.only:
        if name not in SUBJECTS:
            raise UserError(
                f"--only {name} is not a benchmark of this command: choose from {_NAMES}"
            )
    out = pathlib.Path(options.out)
    rows, failed = [], False
    for position, name in enumerate(options.only, 1):
        print(f"[{position}/{len(options.only)}] {name} ...", end=" ", flush=True)
        start = time.monotonic()
        status, lines = run_subject(name, out / name)
        rows += [(name, *line) for line in lines]
        failed |= status not in (0, 2)
        print(f"{time.monotonic() - start:.0f} s", flush=True)
    names = ["benchmark", "setting", "ours", "peer", "ours compared with the peer"]
    text = "\n".join([*table(names, rows), ""])
    print(f"\n{text}\nreports: {out}/NAME/README.md")
    write_atomic(out / "README.md", f"# Summary of the benchmarks\n\n{text}".encode())
    return int(failed)


main = cli.single_program(
    "python -m experiments.lab.benchmarks",
    __doc__,
    "experiments.lab.benchmarks.__main__:run",
    cli.argument(
        "--only",
        f"names of the benchmarks to run: {_NAMES} (default: all of these)",
        nargs="+",
        default=list(SUBJECTS),
        metavar="NAME",
    ),
    cli.local_path_argument(
        "--out DIR", "folder for the reports (default: %(default)s)", default="runs/bench"
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
