"""Times the training of a translation model, against an equal PyTorch model in Joey NMT.

    python -m experiments.lab.benchmarks.translation_training --data-dir DIR --out OUT
    python -m experiments.lab.benchmarks.translation_training --data-dir DIR --out OUT \\
        --bleu-minutes 45

The compared programs are the commands `experiments.translate train` and `joeynmt train`, on the
same subword pieces of Multi30k. The model has 4 encoder and 4 decoder layers, width 128 and one
dropout rate for all of its dropout layers. Training uses Adam and label smoothing. The programs
take turns: one process trains for a few updates while the other processes are paused.

The benchmark counts target tokens, excluding padding. Joey NMT does not sort sentences by length,
so about half of its batch of 4,096 tokens is padding. By default, a batch of this library has the
same mean number of target tokens as a batch of Joey NMT, but less padding. On a CPU, Joey NMT
always computes in float32.

With `--bleu-minutes N`, each program trains alone for N minutes, including start-up and validation.
The report has a curve of the tokenized BLEU of greedy translations against time. If OUT already has
the curve of a program with the same N and batch sizes, that program does not train again.

`make .venv-joeynmt/installed` installs Joey NMT.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.harness import Benchmark, say
from experiments.lab.benchmarks.translation_race import REFERENCE, Trainer, equality, prepare
from experiments.studies import mean_curves, table
from macaron_tf.cli.arguments import argument, count, path_argument, settings
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json

command = Benchmark(
    "translation_training",
    __doc__,
    "target tokens",
    ("tensorflow", "keras"),
    path_argument(
        "--data-dir DIR", "folder with the data sets of TensorFlow Datasets", required=True
    ),
    argument(
        "--joey PYTHON",
        "Python interpreter that can import joeynmt",
        default=".venv-joeynmt/bin/python",
    ),
    count("--tokens", "batch size of Joey NMT in tokens, including padding", 4096),
    count(
        "--our-tokens",
        "batch size of this library in tokens, including padding (default: the size with which an "
        "update has the same mean number of target tokens as in Joey NMT)",
    ),
    count("--dropout", "rate of all dropout layers", 0.3, minimum=0.0, below=1),
    count("--updates", "number of updates of a contender in each round", 5),
    count(
        "--bleu-minutes N",
        "training time of each contender in minutes, after which BLEU is reported (default: time "
        "updates and report no BLEU)",
        minimum=0.01,
    ),
    count("--validate-every", "number of updates between validations with --bleu-minutes", 500),
    settings("training.learning_rate=3e-3"),
)


def rates(trainers: Mapping[str, Trainer], options: argparse.Namespace) -> list[dict]:
    """Times the trainers in interleaved rounds, and returns the output of `harness.compare`.

    Args:
        trainers: dict mapping the name of a library and data type to its trainer.
        options: parsed options of the command.
    """
    contenders = {
        name: harness.counted(
            round(options.updates * trainer.target_tokens), trainer.run_updates, options.updates
        )
        for name, trainer in trainers.items()
    }

    def cpu_clock() -> float:  # counts the trainers, because this process only waits
        return sum(trainer.cpu_seconds() for trainer in trainers.values())

    rows = harness.interleave(contenders, options.rounds, options.warm_up, cpu_clock)
    return harness.compare(rows, REFERENCE)


def bleu_curve(trainer: Trainer, minutes: float) -> list[dict]:
    """Runs one trainer for `minutes`, and returns its BLEU curve.

    The curve has a point for each validation. A point is a dict with "updates", "target_tokens"
    (estimated from the mean per update), "minutes" since the start, and "bleu".

    Raises:
        UserError: the process of the trainer ended by itself.
    """
    start, minutes_by_step = time.monotonic(), {}
    while time.monotonic() - start < 60 * minutes:
        trainer.resume()
        time.sleep(0.5)
        trainer.read_log()
        for step in trainer.validated_steps():
            minutes_by_step.setdefault(step, (time.monotonic() - start) / 60)
    trainer.kill()
    return [
        {
            "updates": step,
            "target_tokens": step * trainer.target_tokens,
            "minutes": minutes_passed,
            "bleu": trainer.bleu(step),
        }
        for step, minutes_passed in minutes_by_step.items()
    ]


def bleu_curves(
    trainers: Mapping[str, Trainer], options: argparse.Namespace, facts: Mapping
) -> str:
    """Measures the BLEU curves that are missing in the folder of `--out`, and returns the report.

    Curves that were made with other minutes or batch sizes count as missing. With `--out`, the
    function also writes the report after each curve.

    Args:
        trainers: dict mapping the name of a library and data type to its trainer.
        options: parsed options of the command.
        facts: output of `harness.machine`.
    """
    padded_tokens = {name: trainer.padded_tokens for name, trainer in trainers.items()}
    setup = {"minutes": options.bleu_minutes, "padded_tokens": padded_tokens}
    path, curves = pathlib.Path(options.out or "", "results.json"), {}
    if options.out and path.exists():
        earlier = read_json(path, mend="remove it", curves=dict)
        if {key: earlier.get(key) for key in setup} == setup:
            curves = earlier["curves"]
    about = harness.heading("Translation training: validation BLEU against time", facts)
    about += f"{equality(trainers)}\n\n"
    for name, trainer in trainers.items():
        if name in curves:
            say(f"{name}: the curve in {path} is kept")
            continue
        say(f"{name} trains for {options.bleu_minutes:g} minutes")
        curves[name] = bleu_curve(trainer, options.bleu_minutes)
        if options.out:
            text = about + bleu_table(curves) + "\n![BLEU](results.png)\n"
            harness.save(options.out, {**setup, "machine": facts, "curves": curves}, text)
            lines = {
                name: {point["minutes"]: [point["bleu"]] for point in points}
                for name, points in curves.items()
            }
            minutes = "minutes, including start-up and validations"
            mean_curves({"": lines}, path.with_name("results.png"), minutes, "BLEU")
    return about + bleu_table(curves)


def bleu_table(curves: Mapping[str, list[dict]]) -> str:
    """Formats a Markdown table with a row for each point of each BLEU curve.

    Args:
        curves: dict mapping the name of a trainer to its curve; see `bleu_curve`.
    """
    cells = "{updates:,} {target_tokens:,.0f} {minutes:.1f} {bleu:.1f}"
    rows = [
        [name, *cells.format(**point).split()]
        for name, points in curves.items()
        for point in points
    ]
    names = ["contender", "updates", "target tokens", "minutes", "BLEU"]
    return "\n".join([*table(names, rows), ""])


def peer_versions(python: str) -> dict[str, str]:
    """Returns the versions of Joey NMT and PyTorch in another Python environment.

    Args:
        python: Python interpreter of the environment.

    Raises:
        UserError: `python` cannot be run, or cannot import Joey NMT.
    """
    code = (
        "import importlib.metadata as m, joeynmt.training\n"
        "print(m.version('joeynmt'), m.version('torch'))"
    )
    try:
        process = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(
            f"--joey {python} cannot import joeynmt: run `make .venv-joeynmt/installed`, or "
            "install experiments/lab/benchmarks/requirements-joeynmt.txt in a separate environment "
            "and give --joey the Python interpreter of this environment"
        ) from None
    return dict(zip(("joeynmt", "torch"), process.stdout.split(), strict=True))


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark: measures throughput or BLEU curves, and prints and writes a report."""
    options = command.parse_args(arguments)
    if options.validate_every % options.updates:
        raise UserError(
            f"--validate-every is {options.validate_every}, but must be a multiple of --updates, "
            f"{options.updates}: give such a multiple, or change --updates"
        )
    versions = peer_versions(options.joey)
    cpus = sorted(os.sched_getaffinity(0))
    if options.threads > len(cpus):
        raise UserError(
            f"--threads is {options.threads}, but must be at most {len(cpus)}, the number of CPUs "
            f"that this process may use: set --threads to {len(cpus)} or less"
        )
    facts = harness.machine(options.threads, command.packages)
    facts["versions"] |= versions
    os.sched_setaffinity(0, cpus[: options.threads])  # child processes inherit this setting
    # Without this handler, a paused child process would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="translation_training-") as folder:
        say("preparing text and vocabulary")
        trainers = prepare(options, pathlib.Path(folder))
        say(equality(trainers))
        try:
            if options.bleu_minutes:
                print(bleu_curves(trainers, options, facts))
                return
            rows = rates(trainers, options)
        finally:
            for trainer in trainers.values():
                trainer.kill()
    target_tokens = [round(trainer.target_tokens) for trainer in trainers.values()]
    setting = f"Multi30k, {min(target_tokens):,} to {max(target_tokens):,} target tokens per update"
    title = "Translation training, end to end"
    harness.publish(options.out, title, facts, [(setting, rows)], command.unit)


if __name__ == "__main__":
    raise SystemExit(main())
