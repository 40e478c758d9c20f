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
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    heading,
    interleave,
    machine,
    save,
    say,
    set_threads,
    summary,
)
from experiments.benchmarks.scaling_steps import (
    BERT_RAB,
    HEAD_DIM,
    MIXERS,
    Point,
    StepConfig,
    make_step,
    peaks,
)
from macaron_tf.errors import UserError, exit_on_user_error

TITLE = "The cost of a training step against its size"
# What the axes are called, and the fields of a point that they vary.
AXES = {"L": "length", "B": "batch", "D": "width", "layers": "layers"}
COSTS = {"milliseconds": "time, ms", "mebibytes": "peak memory, MiB"}


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """`cost = factor * size ** exponent`, the straight line of least squares between logarithms.

    Attributes:
        exponent, factor: of the law.
        r_squared: share of the logarithms' variance that it explains; None of two points, which
            any law explains.
        sizes: how many points there were.
    """

    exponent: float
    factor: float
    r_squared: float | None
    sizes: int

    def __str__(self) -> str:
        if self.r_squared is None:
            return f"{self.exponent:.2f} (two points)"
        return f"{self.exponent:.2f} (R² {self.r_squared:.3f})"


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> PowerLaw:
    """Fits a law.

    Args:
        sizes: two or more, different, above 0.
        costs: one of each size, above 0.
    """
    x, y = np.log(sizes), np.log(costs)
    exponent, offset = np.polyfit(x, y, 1)
    spread = np.sum((y - y.mean()) ** 2)
    left = np.sum((y - exponent * x - offset) ** 2)
    r_squared = None
    if len(sizes) > 2:
        r_squared = float(1 - left / spread) if spread > 0 else 1.0
    return PowerLaw(float(exponent), float(np.exp(offset)), r_squared, len(sizes))


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, PowerLaw]:
    """The law of all points, and that of the upper half, which constant costs bend less.

    Args:
        sizes: two or more, rising.
        costs: one of each size.

    Returns:
        By "all" and "upper half"; of two or three points the latter is that of the last two.
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    return {
        "all": power_law(sizes, costs),
        "upper half": power_law(sizes[first:], costs[first:]),
    }


def laws(of_axis: list[dict], mixer: str, cost: str) -> dict[str, PowerLaw] | None:
    """The laws of one mixer's cost over an axis; None without two sizes that cost anything."""
    sizes, costs = [], []
    for one in of_axis:
        (row,) = (row for row in one["rows"] if row["name"] == mixer)
        value = _middle(row.get(cost))
        if value:
            sizes.append(one["at"])
            costs.append(value)
    return power_laws(sizes, costs) if len(sizes) > 1 else None


def exponents(results: Mapping) -> dict:
    """All laws as JSON takes them: by axis, mixer, cost, and "all" or "upper half"."""
    return {
        axis: {
            mixer: {
                cost: {name: dataclasses.asdict(law) for name, law in found.items()}
                for cost in COSTS
                if (found := laws(of_axis, mixer, cost))
            }
            for mixer in MIXERS
        }
        for axis, of_axis in results.items()
    }


def _middle(value: list[float] | float | None) -> float | None:
    return value[1] if isinstance(value, list) else value


def report(results: Mapping, facts: Mapping, about: str) -> str:
    """The report as text: the exponents of all axes, then a table of points for each.

    Args:
        results: of each axis its points, rising: the size "at", the "point", the mixers' "rows".
        facts: from `machine`.
        about: of all steps.
    """
    lines = [
        *heading(TITLE, facts),
        f"Forward and backward, {about}. Times are medians of interleaved rounds, quartiles in "
        "brackets; memory is what a step's peak adds to weights and inputs. Exponents are of "
        "cost = a size^p, least squares of the logarithms.",
        "",
        "## Exponents",
        "",
        "| against | mixer | time, all | time, upper half | memory, all | memory, upper half |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for axis, of_axis in results.items():
        span = f"{axis} {of_axis[0]['at']} to {of_axis[-1]['at']}"
        for mixer in MIXERS:
            cells = [span, mixer]
            for cost in COSTS:
                found = laws(of_axis, mixer, cost)
                cells += [str(law) for law in found.values()] if found else ["-", "-"]
            lines.append(f"| {' | '.join(cells)} |")
    for axis, of_axis in results.items():
        lines += [
            "",
            f"## {axis}: {_others(of_axis)}",
            "",
            f"| {axis} | mixer | ms a step | time ratio to {BERT_RAB} | peak MiB |",
            "| --- | --- | --- | --- | --- |",
        ]
        for one in of_axis:
            for row in one["rows"]:
                low, middle, high = row["milliseconds"]
                memory = f"{row['mebibytes']:.1f}" if "mebibytes" in row else "-"
                lines.append(
                    f"| {one['at']} | {row['name']} | {middle:.1f} ({low:.1f} to {high:.1f}) | "
                    f"{row['ratio'][1]:.2f} | {memory} |"
                )
    return "\n".join(lines) + "\n"


def _others(of_axis: list[dict]) -> str:
    """What the other sizes are: those that all points share, and B L where it is the same."""
    points = [Point(**one["point"]) for one in of_axis]
    shared = [
        f"{name} {getattr(points[0], field)}"
        for name, field in AXES.items()
        if len({getattr(point, field) for point in points}) == 1
    ]
    if len({point.batch for point in points}) > 1 and len({p.tokens for p in points}) == 1:
        shared.append(f"B L {points[0].tokens}")
    return ", ".join(shared)


def figure(results: Mapping):
    """Time and memory against each axis, log-log, exponents of the upper half in the legends."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(10, 3.6 * len(results)), layout="constrained")
    grid = drawing.subplots(len(results), len(COSTS), squeeze=False)
    for (axis, of_axis), places in zip(results.items(), grid, strict=True):
        for (cost, label), axes in zip(COSTS.items(), places, strict=True):
            for mixer in MIXERS:
                values = [
                    _middle(row.get(cost))
                    for one in of_axis
                    for row in one["rows"]
                    if row["name"] == mixer
                ]
                found = laws(of_axis, mixer, cost)
                if found:
                    name = f"{mixer}: {axis}^{found['upper half'].exponent:.2f}"
                    axes.plot([one["at"] for one in of_axis], values, marker="o", label=name)
            axes.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
            axes.set_xticks([one["at"] for one in of_axis], [str(one["at"]) for one in of_axis])
            axes.minorticks_off()
            axes.set_title(_others(of_axis), fontsize="medium")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
    return drawing


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
