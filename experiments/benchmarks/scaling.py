"""What a training step costs against L, B, D and layers: time, memory, and their exponents.

    python -m experiments.benchmarks.scaling                                    # short: a minute
    python -m experiments.benchmarks.scaling --lengths 64 128 256 512 1024 2048 --batch 4 \\
        --width 256 --rounds 7 --out DIR

One size varies while the others stay; every point is forward and backward through a stack of
BERT-rab's blocks, of SwishRNN's, and of attention and the recurrence alone (a sub-layer with its
LayerNorm and dropout), on whole rows, with dropout, without embeddings, head and optimizer. Both
blocks hold attention: only the last two separate its cost from the recurrence's. The mixers take
turns within a round. A law cost = a size^p is fitted to the medians by least squares of logarithms:
over all sizes, where what does not grow bends it, and over the upper half.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    save,
    say,
    set_threads,
    summary,
)
from experiments.benchmarks.mixers import (
    BERT_RAB,
    HEAD_DIM,
    MIXERS,
    Point,
    StepConfig,
    make_step,
)
from experiments.benchmarks.scaling_memory import peaks
from experiments.benchmarks.scaling_report import AXES, TITLE, exponents, figure, report
from macaron_tf.errors import UserError, exit_on_user_error

# Of a turn: short steps are repeated, or the clock and the call would be measured.
TURN_TOKENS = 2048


def axis_points(options: argparse.Namespace) -> dict[str, list[Point]]:
    """The points of each axis that is asked for, rising."""
    fixed = Point(options.length, options.batch, options.width, options.layers)
    values = {
        "L": options.lengths,
        "B": options.batches,
        "D": options.widths,
        "layers": options.depths,
    }
    points = {}
    for axis in options.axes:
        name = AXES[axis]
        points[axis] = [
            dataclasses.replace(fixed, **{name: value}) for value in sorted(set(values[axis]))
        ]
        if axis == "L" and options.tokens:
            points[axis] = [
                dataclasses.replace(point, batch=options.tokens // point.length)
                for point in points[axis]
            ]
    return points


def timed(point: Point, config: StepConfig, rounds: int) -> list[dict]:
    """`summary`'s rows of all mixers at a point, with "milliseconds" of a step: quartiles."""
    steps = max(1, TURN_TOKENS // point.tokens)

    def contender(mixer: str) -> Callable[[], int]:
        step = make_step(mixer, point, config)

        def turn() -> int:
            for _ in range(steps):
                step()
            return steps * point.tokens

        return turn

    samples = interleave({mixer: contender(mixer) for mixer in MIXERS}, rounds, 1)
    rows = summary(samples, BERT_RAB)
    for row in rows:
        quartiles = np.percentile(row["seconds"], [25, 50, 75])
        row["milliseconds"] = [float(1e3 * value / steps) for value in quartiles]
    return rows


def measured(options: argparse.Namespace, points: Mapping, config: StepConfig) -> dict:
    """All rows: of each axis, of each of its points the size "at" and the mixers' "rows"."""
    results = {}
    for axis, of_axis in points.items():
        results[axis] = []
        for point in of_axis:
            say(f"{axis}: {point}")
            rows = timed(point, config, options.rounds)
            at = getattr(point, AXES[axis])
            results[axis].append({"at": at, "point": dataclasses.asdict(point), "rows": rows})
    if options.memory:
        rows = [row for each in results.values() for one in each for row in one["rows"]]
        works = [(mixer, point) for each in points.values() for point in each for mixer in MIXERS]
        found = peaks(works, config, options.threads)
        for (mixer, point), row, peak in zip(works, rows, found, strict=True):
            say(f"memory: {mixer}: {point}")
            row["mebibytes"] = peak / 2**20
    return results


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser("scaling", __doc__, rounds=3)
    add = parser.add_argument
    add("--axes", nargs="+", default=list(AXES), choices=AXES, help="what varies (default all)")
    lists = {
        "lengths": ([64, 128, 256, 512, 1024], "L"),
        "batches": ([1, 2, 4, 8], "B"),
        "widths": ([64, 128, 256], f"D, multiples of {HEAD_DIM}"),
        "depths": ([1, 2, 4], "layers"),
    }
    for name, (default, what) in lists.items():
        text = f"values of {what} where it varies"
        add_number(parser, f"--{name}", default, text, nargs="+", metavar="N")
    elsewhere = {"length": (128, "L"), "batch": (2, "B"), "width": (128, "D"), "layers": (2, "")}
    for name, (default, what) in elsewhere.items():
        add_number(parser, f"--{name}", default, f"{what or name} elsewhere")
    add("--tokens", type=int, metavar="N", help="where L varies, B = N / L instead of --batch")
    add("--dropout", type=float, default=0.1, help="0 to below 1 (default %(default)s)")
    add("--dtype-policy", default="float32", choices=("float32", "mixed_bfloat16"))
    add("--jit", action="store_true", help="compile the step with XLA")
    add("--no-memory", dest="memory", action="store_false", help="measure time only")
    add_number(parser, "--threads", 2, "threads")
    options = parser.parse_args(arguments)
    for value in (*options.widths, options.width):
        if value % HEAD_DIM:
            raise UserError(f"a width of {value} is no multiple of {HEAD_DIM}, the heads' own.")
    for name in lists:
        if len(set(getattr(options, name))) < 2:
            raise UserError(f"--{name}: give two or more different ones, for an exponent.")
    if options.tokens is not None and options.tokens < max(options.lengths):
        raise UserError(f"--tokens {options.tokens}: give at least the longest of --lengths.")
    if not 0 <= options.dropout < 1:
        raise UserError(f"--dropout {options.dropout}: give a number from 0 to below 1.")
    return options


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Measures all points and prints the report."""
    options = _options(arguments)
    set_threads(options.threads)
    # Every point is a function of its own, traced once; TensorFlow would warn of so many.
    tf.get_logger().setLevel("ERROR")
    facts = machine(options.threads, ("tensorflow", "keras"))
    config = StepConfig(options.dropout, options.dtype_policy, options.jit, options.seed)
    results = measured(options, axis_points(options), config)
    about = f"{config.dtype_policy}, dropout {config.dropout}{', XLA' if config.jit else ''}"
    text = report(results, facts, about)
    print(text)
    if options.out:
        content = {
            "title": TITLE,
            "about": about,
            "machine": facts,
            "exponents": exponents(results),
            "points": results,
        }
        text += "\n![time and memory](results.png)\n"
        save(options.out, content, text, figure(results))


if __name__ == "__main__":
    sys.exit(main())
