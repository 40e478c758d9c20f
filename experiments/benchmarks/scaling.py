"""The cost of a training step against L, B, D and layers: time, memory, and their exponents.

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
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import stats

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Benchmark, say
from experiments.benchmarks.workers import (
    CLEAR,
    GIVE_BACK_MEMORY,
    Contender,
    Worker,
    peak_of,
    thread_variables,
)
from experiments.command_line import count, switch
from experiments.studies import table
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import SwishRNNBlock
from macaron_tf.layers.scheme import Mix
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.stack import Stack

TITLE = "The cost of a training step against its size"
# Whole blocks, with T5's bias as in the paper's comparison, then their mixers alone.
BERT_RAB, SWISH_RNN = "BERT-rab", "SwishRNN"
ATTENTION, RECURRENCE = "attention alone", "recurrence alone"
MIXERS = (BERT_RAB, SWISH_RNN, ATTENTION, RECURRENCE)
HEAD_DIM = 64
TURN_TOKENS = 2048  # short steps are repeated, or the clock and the call would be measured
COSTS = {"milliseconds": "time, ms", "mebibytes": "peak memory, MiB"}
# Of each axis its field of a point, and the option and default of its values.
AXES = {
    "L": ("length", "lengths", [64, 128, 256, 512, 1024]),
    "B": ("batch", "batches", [1, 2, 4, 8]),
    "D": ("width", "widths", [64, 128, 256]),
    "layers": ("layers", "depths", [1, 2, 4]),
}

command = Benchmark(
    "scaling",
    __doc__,
    "tokens",
    ("tensorflow", "keras"),
    harness.several("--axes", AXES, "what varies"),
    *(
        count(f"--{flag}", f"values of {axis} where it varies", values, nargs="+")
        for axis, (_, flag, values) in AXES.items()
    ),
    count("--length", "L elsewhere", 128),
    count("--batch", "B elsewhere", 2),
    count("--width", f"D elsewhere; a multiple of {HEAD_DIM}", 128),
    count("--layers", "layers elsewhere", 2),
    count("--tokens N", "where L varies, B = N / L instead of --batch"),
    harness.DTYPE_POLICY,
    harness.DROPOUT,
    switch("--jit", "compile the step with XLA"),
    switch("--no-memory", "measure time only"),
    rounds=3,
    warm_up=1,
)


@dataclass(frozen=True)
class Point:
    """A step: L, B, D and depth; the others are options of the command."""

    length: int
    batch: int
    width: int
    layers: int
    dropout: float = 0.1
    dtype_policy: str = "float32"
    jit: bool = False
    seed: int = 1

    @property
    def tokens(self) -> int:
        """Of one step, B L."""
        return self.batch * self.length


class _AttentionBlock(Block):
    scheme = (Mix("tokens"),)


class _RecurrenceBlock(SwishRNNBlock):
    scheme = (Mix("channels"),)


def make_stack(mixer: str, point: Point) -> keras.layers.Layer:
    """The layers of one of `MIXERS`, built: `(B, L, D) -> (B, L, D)`.

    The feed-forward has 3 D inner units and the recurrence 2 D: equal parameters.
    """
    keras.utils.set_random_seed(point.seed)
    options = {
        "num_heads": point.width // HEAD_DIM,
        "feed_forward_dim": 3 * point.width,
        "dropout": point.dropout,
        "attention_dropout": point.dropout,
    }
    if mixer in (BERT_RAB, SWISH_RNN):
        encoder = EncoderConfig(
            vocab_size=1,
            hidden_dim=point.width,
            num_layers=point.layers,
            block="transformer" if mixer == BERT_RAB else "swish_rnn",
            relative_bias="per_layer",
            epsilon=1e-5,
            **options,
        )
        stack = Stack(encoder, point.layers, dtype=point.dtype_policy)
    else:
        block = _AttentionBlock if mixer == ATTENTION else _RecurrenceBlock
        options |= {"activation": "gelu", "norm": "post", "dtype": point.dtype_policy}
        stack = keras.Sequential([block(**options) for _ in range(point.layers)])
    stack.build((point.batch, point.length, point.width))
    return stack


def make_step(mixer: str, point: Point) -> Callable[[], tuple]:
    """A function that goes forward and backward through the layers, whole rows, no padding.

    It returns the output's mean and the gradients of the input and the weights.
    """
    stack = make_stack(mixer, point)
    rng = np.random.default_rng(point.seed)
    shape = (point.batch, point.length, point.width)
    dtype = keras.DTypePolicy(point.dtype_policy).compute_dtype
    x, output_gradient = (tf.constant(rng.normal(size=shape), dtype) for _ in range(2))

    @tf.function(jit_compile=point.jit, autograph=False)
    def step(x, output_gradient):
        weights = [weight.value for weight in stack.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = stack(x, training=True)
        gradients = tape.gradient(y, [x, *weights], output_gradients=output_gradient)
        # Returned, so that none is left out of the graph.
        return tf.reduce_mean(tf.cast(y, tf.float32)), gradients

    def run() -> tuple:
        mean, gradients = step(x, output_gradient)
        return mean.numpy(), gradients

    return run


def peaks(works: Sequence[tuple[str, Point]], threads: int) -> Iterator[int]:
    """The peak bytes of each mixer's step at a point, measured in a child process."""
    if not os.access(CLEAR, os.W_OK):
        raise UserError(f"memory is measured by {CLEAR}, not to be had here: give --no-memory.")
    given = {"works": [(mixer, dataclasses.asdict(point)) for mixer, point in works]}
    environment = {**thread_variables(threads), **GIVE_BACK_MEMORY}
    work = works[0]
    try:
        with Worker("experiments.benchmarks.scaling:peak_contenders", given, environment) as child:
            for name, work in zip(child.parameters, works, strict=True):
                say(f"memory: {work}")
                yield int(child.run(name, 1))
    except UserError as error:
        raise UserError(f"memory of {work}: {error} Give smaller sizes, or --no-memory.") from None


def peak_contenders(works: Sequence[tuple[str, Mapping]]) -> dict[str, Contender]:
    """In the child: of each mixer and point one whose figure is the peak of a step."""

    def peak(mixer: str, point: Mapping, steps: int) -> float:
        step = make_step(mixer, Point(**point))
        step()
        step()
        return peak_of(step)

    return {str(i): Contender(functools.partial(peak, *work)) for i, work in enumerate(works)}


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, float | None]:
    """The law `cost = factor * size ** exponent`, a straight line between logarithms.

    Returns:
        "exponent", "factor", how many "sizes" there were, and "r_squared": the share of the
        logarithms' variance that the law explains; None of two points, which any law explains.
    """
    fit = stats.linregress(np.log(sizes), np.log(costs))
    law = {"exponent": float(fit.slope), "factor": float(np.exp(fit.intercept))}
    return {**law, "r_squared": fit.rvalue**2 if len(sizes) > 2 else None, "sizes": len(sizes)}


def _shown(law: Mapping) -> str:
    fit = "two points" if law["r_squared"] is None else f"R² {law['r_squared']:.3f}"
    return f"{law['exponent']:.2f} ({fit})"


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, dict]:
    """The law of all points, and that of the upper half (two or more), which bends less."""
    first = min(len(sizes) // 2, len(sizes) - 2)
    upper = power_law(sizes[first:], costs[first:])
    return {"all": power_law(sizes, costs), "upper half": upper}


def costs_of(rows: list[dict], mixer: str, cost: str) -> tuple[list[int], list[float]]:
    """The sizes at which a mixer's cost was measured, above 0, and its medians."""
    found = [(row["at"], row.get(cost, 0)) for row in rows if row["name"] == mixer]
    pairs = [(at, float(np.median(value))) for at, value in found if np.median(value)]
    return [at for at, _ in pairs], [value for _, value in pairs]


def exponents(results: Mapping[str, list[dict]]) -> dict:
    """All laws: by axis, mixer, cost, and "all" or "upper half"; none where costs are missing."""
    laws = {axis: {mixer: {} for mixer in MIXERS} for axis in results}
    for (axis, rows), mixer, cost in itertools.product(results.items(), MIXERS, COSTS):
        sizes, costs = costs_of(rows, mixer, cost)
        if len(sizes) > 1:
            laws[axis][mixer][cost] = power_laws(sizes, costs)
    return laws


def report(results: Mapping[str, list[dict]], facts: Mapping, about: str) -> str:
    """The report of `measured`'s rows: exponents of all axes, then a table of points for each."""
    text = harness.heading(TITLE, facts) + (
        f"Forward and backward, {about}. Times are medians of interleaved rounds, quartiles in "
        "brackets; memory is what a step's peak adds to weights and inputs. Exponents are of "
        "cost = a size^p, least squares of the logarithms.\n\n## Exponents\n\n"
    )
    names = ["against", "mixer"]
    names += [f"{cost}, {kind}" for cost in ("time", "memory") for kind in ("all", "upper half")]
    rows = []
    for axis, mixers in exponents(results).items():
        span = f"{axis} {results[axis][0]['at']} to {results[axis][-1]['at']}"
        for mixer, laws in mixers.items():
            cells = [map(_shown, laws[cost].values()) if cost in laws else "--" for cost in COSTS]
            rows.append([span, mixer, *itertools.chain(*cells)])
    text += "\n".join([*table(names, rows), ""])
    for axis, of_axis in results.items():
        rows = []
        for row in of_axis:
            low, middle, high = row["milliseconds"]
            memory = f"{row['mebibytes']:.1f}" if "mebibytes" in row else "-"
            time = f"{middle:.1f} ({low:.1f} to {high:.1f})"
            rows.append([str(row["at"]), row["name"], time, f"{row['ratio'][1]:.2f}", memory])
        names = [axis, "mixer", "ms a step", f"time ratio to {BERT_RAB}", "peak MiB"]
        text += "\n".join(["", f"## {axis}: {_others(of_axis)}", "", *table(names, rows), ""])
    return text


def _others(rows: list[dict]) -> str:
    """The other sizes: those that all points share, and B L where it is the same."""
    points = [Point(**row["point"]) for row in rows]
    values = {
        **{axis: {getattr(point, field) for point in points} for axis, (field, *_) in AXES.items()},
        "B L": {point.tokens for point in points},
    }
    if len(values["B"]) == 1:
        del values["B L"]
    return ", ".join(f"{name} {min(of)}" for name, of in values.items() if len(of) == 1)


def figure(results: Mapping[str, list[dict]]) -> Figure:
    """Time and memory against each axis, log-log, exponents of the upper half in the legends."""
    drawing = Figure(figsize=(10, 3.6 * len(results)), layout="constrained")
    grid = drawing.subplots(len(results), len(COSTS), squeeze=False)
    laws = exponents(results)
    for (axis, rows), places in zip(results.items(), grid, strict=True):
        for (cost, label), axes in zip(COSTS.items(), places, strict=True):
            for mixer, of_mixer in laws[axis].items():
                if cost in of_mixer:
                    exponent = of_mixer[cost]["upper half"]["exponent"]
                    name = f"{mixer}: {axis}^{exponent:.2f}"
                    axes.plot(*costs_of(rows, mixer, cost), marker="o", label=name)
            sizes = sorted({row["at"] for row in rows})
            axes.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
            axes.set_xticks(sizes, map(str, sizes))
            axes.minorticks_off()
            axes.set_title(_others(rows), fontsize="medium")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
    return drawing


def axis_points(options: argparse.Namespace) -> dict[str, list[Point]]:
    """The points of each axis that is asked for, rising; a UserError where options disagree."""
    given = vars(options)
    for value in (*options.widths, options.width):
        if value % HEAD_DIM:
            raise UserError(f"a width of {value} is no multiple of {HEAD_DIM}, the heads' own.")
    if options.tokens is not None and options.tokens < max(options.lengths):
        raise UserError(f"--tokens {options.tokens}: give at least the longest of --lengths.")
    fixed = Point(**{field.name: given[field.name] for field in dataclasses.fields(Point)})
    points = {}
    for axis, (field, flag, _) in AXES.items():
        values = sorted(set(given[flag]))
        if len(values) < 2:
            raise UserError(f"--{flag}: give two or more different ones, for an exponent.")
        if axis in options.axes:
            points[axis] = [dataclasses.replace(fixed, **{field: value}) for value in values]
    for i, point in enumerate(points.get("L", []) if options.tokens else []):
        points["L"][i] = dataclasses.replace(point, batch=options.tokens // point.length)
    return points


def measured(options: argparse.Namespace, points: Mapping[str, list[Point]]) -> dict:
    """Of each axis the rows of `timed` at all points.

    A row also has its size "at", its "point", "milliseconds" of a step, quartiles, and "mebibytes".
    """

    def turn(step: Callable, steps: int, tokens: int) -> int:
        for _ in range(steps):
            step()
        return steps * tokens

    results = {axis: [] for axis in points}
    for axis, point in ((axis, point) for axis, found in points.items() for point in found):
        say(f"{axis}: {point}")
        steps = max(1, TURN_TOKENS // point.tokens)
        turns = {
            mixer: functools.partial(turn, make_step(mixer, point), steps, point.tokens)
            for mixer in MIXERS
        }
        for row in harness.timed(turns, options):
            row["milliseconds"] = harness.quartiles(1e3 * np.array(row["seconds"]) / steps)
            row |= {"at": getattr(point, AXES[axis][0]), "point": dataclasses.asdict(point)}
            results[axis].append(row)
    if not options.no_memory:
        rows = [row for of_axis in results.values() for row in of_axis]
        works = [(row["name"], Point(**row["point"])) for row in rows]
        for row, peak in zip(rows, peaks(works, options.threads), strict=True):
            row["mebibytes"] = peak / 2**20
    return results


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Measures all points and prints the report."""
    options = command.parse_args(arguments)
    points = axis_points(options)
    harness.set_threads(options.threads)
    # Every point is a function of its own, traced once; TensorFlow would warn of so many.
    tf.get_logger().setLevel("ERROR")
    facts = harness.machine(options.threads, command.packages)
    results = measured(options, points)
    about = f"{options.dtype_policy}, dropout {options.dropout}{', XLA' if options.jit else ''}"
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
        harness.save(
            options.out, content, text + "\n![time and memory](results.png)\n", figure(results)
        )


if __name__ == "__main__":
    sys.exit(main())
