"""Translation training from end to end, against Joey NMT's equal PyTorch model.

    python -m experiments.benchmarks.translation_training --data-dir DIR --out OUT
    python -m experiments.benchmarks.translation_training --data-dir DIR --out OUT --bleu-minutes 45

Both systems run as their users run them, `experiments.translate train` and `joeynmt train`, on the
same pieces of Multi30k: 4 + 4 layers, D 128, one dropout everywhere, Adam, label smoothing. They
take turns of a few updates, the others halted meanwhile; what is counted is target tokens that
the loss counts, not padding. Joey NMT does not sort sentences by length, so that half of its batch
of 4,096 tokens is padding; ours get a smaller one with as many real target tokens, unless
`--our-tokens` says otherwise. It computes in float32 on a CPU, whatever it is asked for.

With `--bleu-minutes` each trains alone for that long, start-up and validations included, and the
tokenized BLEU of its greedy translations is reported against minutes; contenders whose curves are
in OUT already are not run again.

`make .venv-joeynmt/installed` installs Joey NMT.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    heading,
    interleave,
    machine,
    publish,
    save,
    say,
    summary,
)
from experiments.benchmarks.translation_race import REFERENCE, Race, equality, prepare
from experiments.command_line import settings
from macaron_tf.errors import UserError, exit_on_user_error


def rates(race: Race, options: argparse.Namespace) -> list[dict]:
    """The rows of `summary`: target tokens a second, in turns."""
    cpu_seconds = {name: [] for name in race.trainers}

    def contender(name: str) -> Callable[[], int]:
        def run() -> int:
            cpu_seconds[name].append(race.trainers[name].turn(options.updates))
            return round(options.updates * race.target_tokens[name])

        return run

    samples = interleave(
        {name: contender(name) for name in race.trainers}, options.rounds, options.warm_up
    )
    for name, one in samples.items():
        # What this process used itself, which only waited, is no contender's.
        one.cpu_seconds = cpu_seconds[name][options.warm_up :]
    return summary(samples, REFERENCE)


def bleu_curve(race: Race, name: str, minutes: float) -> list[dict]:
    """One contender trains alone for so many minutes.

    Returns:
        For each validation "updates", "minutes" since the command was given, "bleu" and the
        "target_tokens" of the mean update times updates.
    """
    say(f"{name} trains for {minutes:g} minutes")
    trainer, began, seen = race.trainers[name], time.monotonic(), {}
    while time.monotonic() - began < 60 * minutes:
        trainer.go()
        time.sleep(0.5)
        trainer.look()
        for step in trainer.validated():
            seen.setdefault(step, (time.monotonic() - began) / 60)
    trainer.end()
    return [
        {
            "updates": step,
            "minutes": passed,
            "bleu": trainer.bleu(step),
            "target_tokens": step * race.target_tokens[name],
        }
        for step, passed in seen.items()
    ]


def bleu_curves(race: Race, options: argparse.Namespace, facts: Mapping) -> str:
    """All contenders' curves, written after each; those that `--out` holds already are kept.

    Returns:
        The report.
    """
    what = {"minutes": options.bleu_minutes, "padded_tokens": race.padded_tokens}
    path, curves = pathlib.Path(options.out or "", "results.json"), {}
    if options.out and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if {key: kept.get(key) for key in what} == what:
            curves = kept["curves"]
    for name in race.trainers:
        if name in curves:
            say(f"{name}: kept from {path}")
            continue
        curves[name] = bleu_curve(race, name, options.bleu_minutes)
        text, figure = bleu_report(facts, race, curves)
        if options.out:
            content = {**what, "machine": facts, "curves": curves}
            save(options.out, content, text + "\n![BLEU](results.png)\n", figure)
    return bleu_report(facts, race, curves)[0]


def bleu_report(facts: Mapping, race: Race, curves: Mapping[str, list[dict]]) -> tuple[str, Figure]:
    """The long form as text and as a plot."""
    lines = [
        *heading("Translation training: greedy validation BLEU against minutes", facts),
        equality(race),
        "",
        "| contender | updates | target tokens | minutes | BLEU |",
        "| --- | --- | --- | --- | --- |",
    ]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="minutes, start-up and validations included", ylabel="BLEU")
    for name, points in curves.items():
        lines += [
            f"| {name} | {point['updates']:,} | {point['target_tokens']:,.0f} "
            f"| {point['minutes']:.1f} | {point['bleu']:.1f} |"
            for point in points
        ]
        minutes, bleus = ([point[key] for point in points] for key in ("minutes", "bleu"))
        axes.plot(minutes, bleus, marker="o", label=name)
    axes.legend()
    return "\n".join(lines) + "\n", figure


def peer_versions(python: str) -> dict[str, str]:
    """The versions of Joey NMT and its PyTorch, asked of its interpreter.

    Raises:
        UserError: there is no such interpreter, or no Joey NMT that it can import.
    """
    code = (
        "import importlib.metadata as m, joeynmt.training\n"
        "print(m.version('joeynmt'), m.version('torch'))"
    )
    try:
        said = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(
            f"--joey {python}: no Python that can import joeynmt; run "
            "`make .venv-joeynmt/installed`, or install "
            "experiments/benchmarks/requirements-joeynmt.txt in an environment of its own"
        ) from None
    return dict(zip(("joeynmt", "torch"), said.stdout.split(), strict=True))


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Runs the race and prints its table."""
    options = _options(arguments)
    versions = peer_versions(options.joey)
    cpus = sorted(os.sched_getaffinity(0))
    if options.threads > len(cpus):
        raise UserError(f"--threads {options.threads}: this process may use {len(cpus)} CPUs")
    facts = machine(options.threads, ("tensorflow", "keras"))
    facts["versions"] |= versions
    os.sched_setaffinity(0, cpus[: options.threads])  # the children's too
    # Or a halted child would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="translation_training-") as folder:
        say("preparing text and vocabulary")
        race = prepare(options, pathlib.Path(folder))
        say(equality(race))
        try:
            if options.bleu_minutes:
                print(bleu_curves(race, options, facts))
                return
            rows = rates(race, options)
        finally:
            for trainer in race.trainers.values():
                trainer.end()
    held = {name: round(tokens) for name, tokens in race.target_tokens.items()}
    setting = f"Multi30k, {min(held.values()):,} to {max(held.values()):,} target tokens an update"
    tables = {setting: rows}
    title = "Translation training, end to end"
    publish(options.out, title, facts, tables, "target tokens")
    for row in rows:
        print(f"{row['name']}: {1 / row['ratio'][1]:.2f} times {REFERENCE}'s rate")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("translation_training", __doc__, rounds=5, warm_up=2)
    add = parser.add_argument
    add("--data-dir", metavar="DIR", required=True, help="TensorFlow Datasets' folder")
    add(
        "--joey",
        metavar="PYTHON",
        default=".venv-joeynmt/bin/python",
        help="the interpreter of Joey NMT's environment (default %(default)s)",
    )
    add_number(parser, "--tokens", 4096, "padded, of Joey NMT's batches")
    add_number(parser, "--our-tokens", None, "padded, of ours (as many real ones as Joey NMT's)")
    add("--dropout", type=float, default=0.3, help="everywhere (default %(default)s)")
    add_number(parser, "--updates", 5, "of a turn")
    add_number(parser, "--threads", 2, "CPUs of all processes")
    add_number(
        parser, "--bleu-minutes", None, "train each for N minutes instead", 0.01, float, metavar="N"
    )
    add_number(parser, "--validate-every", 500, "updates, for BLEU")
    settings("training.learning_rate=3e-3")(parser)
    options = parser.parse_args(arguments)
    if options.validate_every % options.updates:
        raise UserError(
            f"--validate-every {options.validate_every}: give a multiple of --updates "
            f"{options.updates}"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
