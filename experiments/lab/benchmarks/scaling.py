"""Measures time and memory of a training step against L, B, D and layers, with exponents.

    python -m experiments.lab.benchmarks.scaling                                # short: a minute
    python -m experiments.lab.benchmarks.scaling --lengths 64 128 256 512 1024 2048 --batch 4 \\
        --width 256 --rounds 7 --out DIR
    python -m experiments.lab.benchmarks.scaling --axes L --lengths 128 512 1024 2048 4096 \\
        --tokens 4096 --width 256 --mixers transformer macaron swish_rnn gmlp --rounds 5 --out DIR

One size varies while the others stay. A step is forward and backward through a stack of layers on
rows without padding, with dropout, without embeddings, head and optimizer. `--mixers` names the
layers: blocks of the library; schemes of operators such as 'tokens, channels'; the blocks of
BERT-rab and SwishRNN with T5's bias, as in the paper's comparison; or attention and the recurrence
alone (a sub-layer with its LayerNorm and dropout). Both blocks contain attention, so only the last
two separate its cost from the recurrence's. All take turns within a round.

If `transformer` is among the mixers, a table has the time and memory of each block relative to it
at each length, and the block's quality in the committed studies (`STUDIES`). A law cost = a size^p
is fitted to the medians by least squares of logarithms: over all sizes, where fixed costs bend it,
and over the upper half.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure
from scipy import stats

from experiments import studies
from experiments.lab.benchmarks import harness
from experiments.lab.benchmarks.harness import Benchmark, say
from experiments.lab.benchmarks.workers import (
    CLEAR,
    GIVE_BACK_MEMORY,
    Contender,
    Worker,
    peak_of,
    thread_variables,
)
from experiments.studies import table
from macaron_tf.cli.arguments import argument, count, switch
from macaron_tf.errors import UserError
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.stack import Stack

# Whole blocks with T5's bias, as in the paper's comparison, and then their mixers alone.
BERT_RAB, SWISH_RNN = "BERT-rab", "SwishRNN"
ATTENTION, RECURRENCE = "attention alone", "recurrence alone"
MIXERS = (BERT_RAB, SWISH_RNN, ATTENTION, RECURRENCE)
_SPELLED = {
    BERT_RAB: {"block": "transformer", "relative_bias": "per_layer"},
    SWISH_RNN: {"block": "swish_rnn", "relative_bias": "per_layer"},
    ATTENTION: {"scheme": "tokens"},
    RECURRENCE: {"block": "swish_rnn", "scheme": "channels"},
}
HEAD_DIM = 64
TURN_TOKENS = 2048  # short steps are repeated, so that the clock and the call do not count
COSTS = {"milliseconds": "time, ms", "mebibytes": "peak memory, MiB"}
# For each axis: its field of a `Point`, and the option of its values with their default.
AXES = {
    "L": ("length", "lengths", [64, 128, 256, 512, 1024]),
    "B": ("batch", "batches", [1, 2, 4, 8]),
    "D": ("width", "widths", [64, 128, 256]),
    "layers": ("layers", "depths", [1, 2, 4]),
}

# Studies with the quality of blocks, by the name of a column: the file under experiments/results,
# fields that its rows must have, the metric, and the field that names the block, with other names
# of the blocks there.
RESULTS = pathlib.Path(__file__).parents[2] / "results"
_SYSTEMS = {"transformer": "BERT", "gmlp": "gMLP", "amlp": "aMLP"}
_RECIPES = {
    "transformer": "bert_tiny",
    "macaron": "macaron_bert_tiny",
    "swish_rnn": "swish_rnn_tiny",
}
_GPT = {"system": "GPT"}
STUDIES = {
    "masked loss, as published (encoders)": ("encoders/curves", {}, "loss", "recipe", _RECIPES),
    "masked loss, pre-norm (encoders)": ("encoders/same_norm/curves", {}, "loss", "recipe", {}),
    "masked loss (slides_encoders)": ("slides_encoders/encoders", {}, "loss", "system", _SYSTEMS),
    "GPT's perplexity (slides_decoders)": (
        *("slides_decoders/decoders", _GPT, "perplexity", "block", {}),
    ),
}

command = Benchmark(
    "scaling",
    __doc__,
    "tokens",
    ("tensorflow", "keras"),
    harness.several("--axes", AXES, "sizes that vary, one after another"),
    argument("--mixers", "layers: see above", default=MIXERS, nargs="+", metavar="NAME"),
    *(
        count(f"--{flag}", f"values of {axis} when it varies", values, nargs="+")
        for axis, (_, flag, values) in AXES.items()
    ),
    count("--length", "row length L when another size varies", 128),
    count("--batch", "rows B in a batch when another size varies", 2),
    count("--width", f"width D when another size varies; a multiple of {HEAD_DIM}", 128),
    count("--layers", "number of layers when another size varies", 2),
    count("--tokens N", "tokens in a batch when L varies: B = N / L instead of --batch"),
    harness.DTYPE_POLICY,
    harness.DROPOUT,
    switch("--jit", "compile the step with XLA"),
    switch("--no-memory", "measure time only"),
    rounds=3,
    warm_up=1,
)


@dataclass(frozen=True)
class Point:
    """Sizes and options of a step that is measured."""

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
        """Number of tokens in a step, B L."""
        return self.batch * self.length


def make_stack(mixer: str, point: Point) -> Stack:
    """Builds the layers of a mixer: `(B, L, D) -> (B, L, D)`.

    The feed-forward has 3 D inner units and the recurrence 2 D, so that parameters are equal. gMLP
    has no projections for attention and, as in its paper, 6 D inner units. gMLP and aMLP have L^2
    further weights.
    """
    keras.utils.set_random_seed(point.seed)
    spelled = {"scheme": mixer} if "," in mixer else _SPELLED.get(mixer, {"block": mixer})
    config = EncoderConfig(
        vocab_size=1,
        hidden_dim=point.width,
        num_layers=point.layers,
        max_length=point.length,
        num_heads=point.width // HEAD_DIM,
        feed_forward_dim=(6 if mixer in ("gmlp", "amlp") else 3) * point.width,
        dropout=point.dropout,
        attention_dropout=point.dropout,
        epsilon=1e-5,
        **spelled,
    )
    stack = Stack(config, point.layers, dtype=point.dtype_policy)
    stack.build((point.batch, point.length, point.width))
    return stack


def make_step(mixer: str, point: Point) -> Callable[[], tuple]:
    """A function that runs the layers forward and backward on rows without padding.

    It returns the mean of the output, and the gradients of the input and the weights.
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
        # The gradients are returned so that TensorFlow does not prune them from the graph.
        return tf.reduce_mean(tf.cast(y, tf.float32)), gradients

    def run() -> tuple:
        mean, gradients = step(x, output_gradient)
        return mean.numpy(), gradients

    return run


def peaks(works: Sequence[tuple[Point, str]], threads: int) -> Iterator[int]:
    """The peak bytes of each mixer's step at a point, measured in a child process."""
    if not os.access(CLEAR, os.W_OK):
        raise UserError(
            f"memory is measured by {CLEAR}, which is not writable here: give --no-memory."
        )
    given = {"works": [(mixer, dataclasses.asdict(point)) for point, mixer in works]}
    environment = {**thread_variables(threads), **GIVE_BACK_MEMORY}
    work = works[0]
    try:
        with Worker(
            "experiments.lab.benchmarks.scaling:peak_contenders", given, environment
        ) as child:
            for name, work in zip(child.parameters, works, strict=True):
                say(f"memory: {work}")
                yield int(child.run(name, 1))
    except UserError as error:
        raise UserError(f"memory of {work}: {error} Give smaller sizes, or --no-memory.") from None


def peak_contenders(works: Sequence[tuple[str, Mapping]]) -> dict[str, Contender]:
    """Contenders of the child process, one for each mixer and point, that return a step's peak."""

    def peak(mixer: str, point: Mapping, steps: int) -> float:
        step = make_step(mixer, Point(**point))
        step()
        step()
        return peak_of(step)

    return {str(i): Contender(functools.partial(peak, *work)) for i, work in enumerate(works)}


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, float | None]:
    """Fits the law `cost = factor * size ** exponent`, a straight line between logarithms.

    Returns:
        "exponent", "factor", the number of "sizes", and "r_squared": the share of the logarithms'
        variance that the law explains; None for two points, which every line fits.
    """
    fit = stats.linregress(np.log(sizes), np.log(costs))
    law = {"exponent": float(fit.slope), "factor": float(np.exp(fit.intercept))}
    return {**law, "r_squared": fit.rvalue**2 if len(sizes) > 2 else None, "sizes": len(sizes)}


def _shown(law: Mapping) -> str:
    fit = "two points" if law["r_squared"] is None else f"R² {law['r_squared']:.3f}"
    return f"{law['exponent']:.2f} ({fit})"


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, dict]:
    """Fits all points, and the upper half of them (two or more), where the line bends less."""
    first = min(len(sizes) // 2, len(sizes) - 2)
    upper = power_law(sizes[first:], costs[first:])
    return {"all": power_law(sizes, costs), "upper half": upper}


def summary(tables: Mapping[str, list[dict]]) -> harness.Summary:
    """Summarizes all tables: exponents by axis, mixer, cost, and "all" or "upper half".

    The figure shows time and memory against each axis, log-log, with the upper half's exponents.
    """
    drawing = Figure(figsize=(10, 3.6 * len(tables)), layout="constrained")
    grid = drawing.subplots(len(tables), len(COSTS), squeeze=False)
    laws, lines = {}, []
    for (setting, rows), places in zip(tables.items(), grid, strict=True):
        axis, sizes = rows[0]["axis"], sorted({row["at"] for row in rows})
        laws[axis] = {row["mixer"]: {} for row in rows}
        for (cost, label), axes in zip(COSTS.items(), places, strict=True):
            for mixer, found in laws[axis].items():
                mine = [row for row in rows if row["mixer"] == mixer and np.median(row[cost])]
                if len(mine) > 1:
                    line = [row["at"] for row in mine], [np.median(row[cost]) for row in mine]
                    found[cost] = power_laws(*line)
                    exponent = found[cost]["upper half"]["exponent"]
                    axes.plot(*line, marker="o", label=f"{mixer}: {axis}^{exponent:.2f}")
            axes.set(xscale="log", xlabel=axis, ylabel=label)
            axes.set_xticks(sizes, map(str, sizes))
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set_title(setting, fontsize="medium")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
        for mixer, found in laws[axis].items():
            cells = [map(_shown, found[cost].values()) if cost in found else "--" for cost in COSTS]
            span = f"{axis} {sizes[0]} to {sizes[-1]}"
            lines.append([span, mixer, *itertools.chain(*cells)])
    names = ["against", "mixer"]
    names += [f"{cost}, {kind}" for cost in ("time", "memory") for kind in ("all", "upper half")]
    text = (
        "\n## Exponents\n\nOf cost = a size^p, least squares of the logarithms. Memory is what a "
        "step's peak adds to weights and inputs.\n\n"
    )
    text += "\n".join([*table(names, lines), ""])
    beside = beside_transformer(tables)
    if beside:
        text += (
            "\n## Blocks beside the Transformer\n\nTime and peak memory of a step over the "
            "Transformer's at the same length. Quality is of small models on 64 positions in this "
            "repository's studies, named in the columns, mean and deviation of seeds; lower is "
            "better, and columns do not compare. As published Macaron is pre-norm and SwishRNN has "
            "T5's bias; the Transformer has neither.\n\n"
        )
        text += "\n".join([*table(list(beside[0]), [line.values() for line in beside]), ""])
    return {"exponents": laws, "blocks": beside}, text, drawing


def beside_transformer(tables: Mapping[str, list[dict]]) -> list[dict[str, str]]:
    """One line for each block and length.

    A line has time and memory relative to the Transformer's, the number of parameters, and quality.
    """
    rows = [row for rows in tables.values() for row in rows if row["axis"] == "L"]
    base = {row["at"]: row for row in rows if row["mixer"] == "transformer"}
    lines = []
    for row in rows if base else []:
        cells = {"block": row["mixer"], "L": str(row["at"])}
        for cost, name in (("milliseconds", "time"), ("mebibytes", "memory")):
            mine, theirs = (np.median(one[cost]) for one in (row, base[row["at"]]))
            cells[name] = f"{mine / theirs:.2f}" if theirs else "-"
        cells["parameters"] = f"{row['parameters']:,}"
        lines.append({**cells, **qualities(row["mixer"])})
    return lines


def qualities(block: str) -> dict[str, str]:
    """Mean and deviation over seeds of a block's quality, in each of `STUDIES` that has it."""
    found = {}
    for name, (file, having, metric, key, names) in STUDIES.items():
        wanted = {**having, key: names.get(block, block)}
        rows = studies.read_json(RESULTS / f"{file}.json", rows=list)["rows"]
        rows = [row for row in rows if wanted.items() <= row.items()]
        last = [{**row.get("curve", [{}])[-1], **row} for row in rows]
        found[name] = studies.mean_of(last, metric, 2)
    return found


def axis_points(options: argparse.Namespace) -> dict[str, list[Point]]:
    """The points of each axis in `--axes`, in rising order.

    Raises:
        UserError: options contradict each other.
    """
    given = vars(options)
    for value in (*options.widths, options.width):
        if value % HEAD_DIM:
            raise UserError(f"a width of {value} is no multiple of {HEAD_DIM}, the heads' width.")
    if options.tokens is not None and options.tokens < max(options.lengths):
        raise UserError(f"--tokens {options.tokens}: give at least the longest of --lengths.")
    fixed = Point(**{field.name: given[field.name] for field in dataclasses.fields(Point)})
    points = {}
    for axis, (field, flag, _) in AXES.items():
        values = sorted(set(given[flag]))
        if len(values) < 2:
            raise UserError(f"--{flag}: give two or more different values to fit an exponent.")
        if axis in options.axes:
            points[axis] = [dataclasses.replace(fixed, **{field: value}) for value in values]
    for i, point in enumerate(points.get("L", []) if options.tokens else []):
        points["L"][i] = dataclasses.replace(point, batch=options.tokens // point.length)
    return points


def measured(options: argparse.Namespace, axis: str, points: Sequence[Point]) -> list[dict]:
    """Measures all points of an axis.

    Returns:
        Rows of `timed` that also have the "axis", the "mixer", the size "at" which it was measured,
        quartiles of "milliseconds" of a step, "parameters", and "mebibytes" (0: not measured).
    """

    def repeat(step: Callable, steps: int) -> None:
        for _ in range(steps):
            step()

    found = []
    for point in points:
        say(f"{axis}: {point}")
        steps = max(1, TURN_TOKENS // point.tokens)
        turns = {
            mixer: harness.counted(steps * point.tokens, repeat, make_step(mixer, point), steps)
            for mixer in options.mixers
        }
        for row in harness.timed(turns, options):
            row |= {"axis": axis, "mixer": row["name"], "at": getattr(point, AXES[axis][0])}
            row["name"] = f"{axis} {row['at']}, {row['mixer']}"
            row["milliseconds"] = harness.quartiles(1e3 * np.array(row["seconds"]) / steps)
            row["mebibytes"] = 0.0
            row["parameters"] = make_stack(row["mixer"], point).count_params()
            found.append(row)
    if not options.no_memory:
        works = list(itertools.product(points, options.mixers))
        for row, peak in zip(found, peaks(works, options.threads), strict=True):
            row["mebibytes"] = peak / 2**20
    for row in found:
        memory = f"{row['mebibytes']:.1f}" if row["mebibytes"] else "-"
        more = {"ms a step": harness.cell(row["milliseconds"], 1), "peak MiB": memory}
        row["more"] = {**more, "parameters": f"{row['parameters']:,}"}
    return found


@command.measures("The cost of a training step, forward and backward, against its size", summary)
def main(options: argparse.Namespace) -> harness.Tables:
    """Measures the points of each axis."""
    points = axis_points(options)
    harness.set_threads(options.threads)
    # Every point has its own function, traced once. TensorFlow would warn of too many functions.
    tf.get_logger().setLevel("ERROR")
    about = f"{options.dtype_policy}, dropout {options.dropout}{', XLA' * options.jit}"
    for axis, of_axis in points.items():
        sizes = {name: getattr(options, field) for name, (field, *_) in AXES.items()}
        if axis == "L" and options.tokens:
            sizes = {**sizes, "B": f"{options.tokens} / L"}
        rest = ", ".join(f"{name} {size}" for name, size in sizes.items() if name != axis)
        yield f"{axis}: {rest}; {about}", measured(options, axis, of_axis)


if __name__ == "__main__":
    raise SystemExit(main())
