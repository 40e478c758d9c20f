"""Measures how time and memory of a training step scale with L, B, D and the number of layers.

    python -m experiments.lab.benchmarks.scaling                                # short: 1 minute
    python -m experiments.lab.benchmarks.scaling --lengths 64 128 256 512 1024 2048 --batch 4 \\
        --width 256 --rounds 7 --out DIR
    python -m experiments.lab.benchmarks.scaling --axes L --lengths 128 512 1024 2048 4096 \\
        --tokens 4096 --width 256 --mixers transformer macaron swish_rnn gmlp --rounds 5 --out DIR

The benchmark varies one size at a time: row length L, batch size B, width D or the number of
layers. A step is a forward and backward pass through a stack of layers, with dropout, on rows
without padding. The stack has no embeddings, head or optimizer. `--mixers` names the layers:

    transformer, swish_rnn, ...     blocks of the library
    'tokens, channels', ...         splitting schemes
    BERT-rab, SwishRNN              blocks with T5's position bias, as in the SwishRNN paper
    attention alone                 one attention sub-layer, with LayerNorm and dropout
    recurrence alone                one SwishRNN recurrence, with LayerNorm and dropout

In each round, every mixer runs once.

The report has the exponent p of a power law cost = a size^p, which is fitted to the medians by
least squares in the logarithms. A second fit uses only the upper half of the sizes, where fixed
costs matter less. If `transformer` is among the mixers and L varies, a table compares the time,
memory and quality of each block with the Transformer. The quality comes from the studies in
experiments/results.
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
from experiments.lab.benchmarks.harness import Benchmark, compare, say
from experiments.lab.benchmarks.workers import (
    CLEAR_REFS,
    RETURN_MEMORY,
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

# Blocks with T5's position bias, as in the SwishRNN paper, and single mixers.
BERT_RAB, SWISH_RNN = "BERT-rab", "SwishRNN"
ATTENTION, RECURRENCE = "attention alone", "recurrence alone"
MIXERS = (BERT_RAB, SWISH_RNN, ATTENTION, RECURRENCE)
_MIXER_OPTIONS = {
    BERT_RAB: {"block": "transformer", "relative_bias": "per_layer"},
    SWISH_RNN: {"block": "swish_rnn", "relative_bias": "per_layer"},
    ATTENTION: {"scheme": "tokens"},
    RECURRENCE: {"block": "swish_rnn", "scheme": "channels"},
}
HEAD_DIM = 64
TOKENS_PER_CALL = 2048  # short steps are repeated up to this number, to hide the cost of a call
COSTS = {"milliseconds": "time, ms", "mebibytes": "peak memory, MiB"}
# Dict mapping an axis to a field of `Point`, the name of the flag with its values, and default
# values.
AXES = {
    "L": ("length", "lengths", [64, 128, 256, 512, 1024]),
    "B": ("batch", "batches", [1, 2, 4, 8]),
    "D": ("width", "widths", [64, 128, 256]),
    "layers": ("layers", "depths", [1, 2, 4]),
}

# Studies with the quality of blocks. Each table column maps to a file in experiments/results, a
# metric, the field that names the block, and a dict of the blocks' names in the file.
RESULTS = pathlib.Path(__file__).parents[2] / "results"
_SYSTEMS = {"transformer": "BERT", "gmlp": "gMLP", "amlp": "aMLP"}
_ENCODERS = {"transformer": "bert", "macaron": "macaron"}
_BIASED_ENCODERS = {"transformer": "rab", "swish_rnn": "swish"}
_GPTS = {"transformer": "transformer", "macaron": "macaron", "swish_rnn": "swish"}
STUDIES = {
    "masked loss (encoders)": ("encoders/results", "loss", "arm", _ENCODERS),
    "masked loss, T5's bias (encoders)": ("encoders/results", "loss", "arm", _BIASED_ENCODERS),
    "masked loss (slides_encoders)": ("slides_encoders/encoders", "loss", "system", _SYSTEMS),
    "GPT's loss (compare/modern)": ("compare/modern/results", "loss", "arm", _GPTS),
}

command = Benchmark(
    "scaling",
    __doc__,
    "tokens",
    ("tensorflow", "keras"),
    harness.several(
        "--axes", AXES, "names of the sizes that the benchmark varies, one size at a time"
    ),
    argument(
        "--mixers",
        "names of the layers or blocks to measure, such as SwishRNN or macaron",
        default=MIXERS,
        nargs="+",
        metavar="NAME",
    ),
    *(
        count(f"--{flag}", f"sizes to measure along the axis {axis} of --axes", values, nargs="+")
        for axis, (_, flag, values) in AXES.items()
    ),
    count("--length", "row length L while another size varies", 128),
    count("--batch", "number of rows B in a batch while another size varies", 2),
    count("--width", f"width D while another size varies, a multiple of {HEAD_DIM}", 128),
    count("--layers", "number of layers while another size varies", 2),
    count(
        "--tokens N",
        "number of tokens in a batch while L varies; the batch size is N / L, rounded down "
        "(default: a batch has --batch rows at every L)",
    ),
    harness.DTYPE_POLICY,
    harness.DROPOUT,
    switch("--jit", "compile the step with XLA"),
    switch("--no-memory", "measure only the time, not the memory"),
    rounds=3,
    warm_up=1,
)


@dataclass(frozen=True)
class Point:
    """Sizes and options of a measured step.

    Attributes:
        length: row length L.
        batch: batch size B.
        width: width D.
        layers: number of layers.
        dropout: dropout rate.
        dtype_policy: Keras dtype policy.
        jit: whether XLA compiles the step.
        seed: random seed of weights and inputs.
    """

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
        """Number of tokens B L in a step."""
        return self.batch * self.length


def make_stack(mixer: str, point: Point) -> Stack:
    """Builds a stack of layers, `(B, L, D) -> (B, L, D)`.

    The total inner width of a layer is 3 D for feed-forward layers and 2 D for a recurrence, which
    gives both the same number of matrix parameters. gMLP and aMLP have an inner width of 6 D, as in
    their paper, and 3 L - 1 more weights per layer for the spatial gating.

    Args:
        mixer: name of the layers, as for `--mixers`.
        point: sizes and options.
    """
    keras.utils.set_random_seed(point.seed)
    options_of_mixer = (
        {"scheme": mixer} if "," in mixer else _MIXER_OPTIONS.get(mixer, {"block": mixer})
    )
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
        **options_of_mixer,
    )
    stack = Stack(config, point.layers, dtype=point.dtype_policy)
    stack.build((point.batch, point.length, point.width))
    return stack


def make_step(mixer: str, point: Point) -> Callable[[], tuple]:
    """Returns a function that runs a forward and backward pass through a stack of layers.

    The returned function has no arguments. It returns the mean output, and the gradients with
    respect to the input and weights.

    Args:
        mixer: name of the layers, as for `--mixers`.
        point: sizes and options.
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
        # Returns the gradients, so that TensorFlow does not prune them from the graph.
        return tf.reduce_mean(tf.cast(y, tf.float32)), gradients

    def call() -> tuple:
        mean, gradients = step(x, output_gradient)
        return mean.numpy(), gradients

    return call


def peaks(measurements: Sequence[tuple[Point, str]], threads: int) -> Iterator[int]:
    """Runs training steps in a child process, and yields the peak memory of each step in bytes.

    Args:
        measurements: for each step, a pair of its sizes and options (`Point`) and the name of its
            layers (`--mixers`).
        threads: number of threads of the child process.

    Raises:
        UserError: the system cannot measure memory, or the child process failed.
    """
    if not os.access(CLEAR_REFS, os.W_OK):
        raise UserError(
            f"{CLEAR_REFS} is not writable, but measuring memory needs write access: run as root "
            "on Linux, or give --no-memory"
        )
    arguments = {
        "measurements": [(mixer, dataclasses.asdict(point)) for point, mixer in measurements]
    }
    environment = {**thread_variables(threads), **RETURN_MEMORY}
    measurement = measurements[0]
    try:
        with Worker(
            "experiments.lab.benchmarks.scaling:peak_contenders", arguments, environment
        ) as worker:
            for name, measurement in zip(worker.parameters, measurements, strict=True):
                say(f"memory: {measurement}")
                yield int(worker.run(name, 1))
    except UserError as error:
        raise UserError(
            f"the memory of {measurement} was not measured ({error}): give smaller sizes, or "
            "--no-memory"
        ) from None


def peak_contenders(measurements: Sequence[tuple[str, Mapping]]) -> dict[str, Contender]:
    """Makes, for each step, a `Contender` that returns the peak memory of the step in bytes.

    A child process calls this function.

    Args:
        measurements: for each step, a pair of the name of its layers (`--mixers`) and a dict with
            the fields of its `Point`.

    Returns:
        A dict mapping the index in `measurements`, as a string, to the `Contender` of this step.
    """

    def peak(mixer: str, point: Mapping, steps: int) -> float:
        step = make_step(mixer, Point(**point))
        step()
        step()
        return peak_of(step)

    return {
        str(i): Contender(functools.partial(peak, *measurement))
        for i, measurement in enumerate(measurements)
    }


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, float | None]:
    """Fits the power law `cost = factor * size ** exponent` by linear regression of logarithms.

    Args:
        sizes: sizes, such as row lengths.
        costs: measured time or memory at each size.

    Returns:
        A dict with "exponent", "factor", "sizes" (number of sizes) and "r_squared" (coefficient of
        determination of the logarithms; `None` for two sizes).
    """
    fit = stats.linregress(np.log(sizes), np.log(costs))
    law = {"exponent": float(fit.slope), "factor": float(np.exp(fit.intercept))}
    return {**law, "r_squared": fit.rvalue**2 if len(sizes) > 2 else None, "sizes": len(sizes)}


def _law_text(law: Mapping) -> str:
    fit = "two points" if law["r_squared"] is None else f"R² {law['r_squared']:.3f}"
    return f"{law['exponent']:.2f} ({fit})"


def power_laws(sizes: Sequence[float], costs: Sequence[float]) -> dict[str, dict]:
    """Fits one power law to all sizes, and another power law to the upper half of the sizes.

    The upper half has at least two sizes. Its exponent depends less on fixed costs, such as the
    overhead of calls.

    Args:
        sizes: sizes in ascending order.
        costs: measured time or memory at each size.

    Returns:
        A dict with the keys "all" and "upper half"; see `power_law` for its values.
    """
    first = min(len(sizes) // 2, len(sizes) - 2)
    upper = power_law(sizes[first:], costs[first:])
    return {"all": power_law(sizes, costs), "upper half": upper}


def summary(tables: Mapping[str, list[dict]]) -> harness.Summary:
    """Makes the summary of all tables: exponents, and plots of time and memory on logarithmic axes.

    The field "exponents" is a nested dict whose keys are, from outside to inside, axis, mixer,
    cost, and "all" or "upper half". The field "blocks" is the output of `compare_with_transformer`.

    Args:
        tables: dict mapping a setting to its rows.
    """
    figure = Figure(figsize=(10, 3.6 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), len(COSTS), squeeze=False)
    laws, lines = {}, []
    for (setting, rows), panels in zip(tables.items(), grid, strict=True):
        axis, sizes = rows[0]["axis"], sorted({row["at"] for row in rows})
        laws[axis] = {row["mixer"]: {} for row in rows}
        for (cost, label), axes in zip(COSTS.items(), panels, strict=True):
            for mixer, fits in laws[axis].items():
                mixer_rows = [row for row in rows if row["mixer"] == mixer and np.median(row[cost])]
                if len(mixer_rows) > 1:
                    points = (
                        [row["at"] for row in mixer_rows],
                        [np.median(row[cost]) for row in mixer_rows],
                    )
                    fits[cost] = power_laws(*points)
                    exponent = fits[cost]["upper half"]["exponent"]
                    axes.plot(*points, marker="o", label=f"{mixer}: {axis}^{exponent:.2f}")
            axes.set(xscale="log", xlabel=axis, ylabel=label)
            axes.set_xticks(sizes, map(str, sizes))
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set_title(setting, fontsize="medium")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
        for mixer, fits in laws[axis].items():
            cells = [
                map(_law_text, fits[cost].values()) if cost in fits else "--" for cost in COSTS
            ]
            range_of_sizes = f"{axis} {sizes[0]} to {sizes[-1]}"
            lines.append([range_of_sizes, mixer, *itertools.chain(*cells)])
    names = ["against", "mixer"]
    names += [f"{cost}, {part}" for cost in ("time", "memory") for part in ("all", "upper half")]
    text = (
        "\n## Exponents\n\nExponents p of cost = a size^p, fitted by least squares in the "
        "logarithms. Memory is the peak memory of a step beyond weights and inputs.\n\n"
    )
    text += "\n".join([*table(names, lines), ""])
    comparison = compare_with_transformer(tables)
    if comparison:
        text += (
            "\n## Blocks compared with the Transformer\n\nTime (the median of the rounds' ratios) "
            "and peak memory of a step are relative to the Transformer at the same length. The "
            "quality is the mean and the standard deviation over seeds of small models with 64 "
            "positions, from the study in the column's heading. Lower is better; columns cannot be "
            "compared with each other. "
            "All models are pre-norm. In the studies `encoders` and `compare/modern`, each block "
            "has its best learning rate.\n\n"
        )
        text += "\n".join([*table(list(comparison[0]), [line.values() for line in comparison]), ""])
    return {"exponents": laws, "blocks": comparison}, text, figure


def compare_with_transformer(tables: Mapping[str, list[dict]]) -> list[dict[str, str]]:
    """Computes the time, memory and quality of each block for comparison with the Transformer.

    Args:
        tables: dict mapping a setting to its rows.

    Returns:
        A list of table rows, one for each block and row length. A table row is a dict mapping the
        heading of a column to a cell. The columns are time and memory relative to the Transformer,
        parameter count, and quality. The list is empty if the Transformer was not measured at
        several row lengths.
    """
    rows = [row for rows in tables.values() for row in rows if row["axis"] == "L"]
    base = {row["at"]: row for row in rows if row["mixer"] == "transformer"}
    lines = []
    for row in rows if base else []:
        reference = base[row["at"]]
        _, ratio, _ = compare([reference, row])[1]["ratio"]  # quartiles over the rounds
        memory, base_memory = row["mebibytes"], reference["mebibytes"]
        cells = {
            "block": row["mixer"],
            "L": str(row["at"]),
            "time": f"{ratio:.2f}",
            "memory": f"{memory / base_memory:.2f}" if base_memory else "-",
            "parameters": f"{row['parameters']:,}",
        }
        lines.append({**cells, **qualities(row["mixer"])})
    return lines


def qualities(block: str) -> dict[str, str]:
    """Returns the quality of a block in earlier studies, as a dict for table cells.

    The dict maps each key of `STUDIES` to a cell. The cell has the mean and standard deviation over
    seeds, or "-" if the study does not include the block.
    """
    cells = {}
    for name, (file, metric, key, names) in STUDIES.items():
        rows = studies.read_json(RESULTS / f"{file}.json", rows=list)["rows"]
        rows = [row for row in rows if row[key] == names.get(block)]
        cells[name] = studies.mean_of(rows, metric, 2)
    return cells


def axis_points(options: argparse.Namespace) -> dict[str, list[Point]]:
    """Returns the configurations to measure, as a dict mapping each axis in `--axes` to `Point`s.

    The `Point` objects of an axis are in ascending order of the size that varies.

    Raises:
        UserError: a width is not a multiple of `HEAD_DIM`, `--tokens` is less than the maximum of
            `--lengths`, or an axis has only one size.
    """
    option_values = vars(options)
    for value in (*options.widths, options.width):
        if value % HEAD_DIM:
            raise UserError(
                f"the width {value} in --width or --widths is not a multiple of the head dimension "
                f"{HEAD_DIM}: give a multiple of {HEAD_DIM}"
            )
    if options.tokens is not None and options.tokens < max(options.lengths):
        raise UserError(
            f"--tokens is {options.tokens}, but must be at least {max(options.lengths)}, the "
            "maximum of --lengths: raise --tokens, or lower --lengths"
        )
    default_point = Point(
        **{field.name: option_values[field.name] for field in dataclasses.fields(Point)}
    )
    points = {}
    for axis in options.axes:
        field, flag, _ = AXES[axis]
        values = sorted(set(option_values[flag]))
        if len(values) < 2:
            raise UserError(
                f"--{flag} has only one value, but fitting an exponent needs at least two "
                "different values: add another value"
            )
        points[axis] = [dataclasses.replace(default_point, **{field: value}) for value in values]
    for i, point in enumerate(points.get("L", []) if options.tokens else []):
        points["L"][i] = dataclasses.replace(point, batch=options.tokens // point.length)
    return points


def measure(options: argparse.Namespace, axis: str, points: Sequence[Point]) -> list[dict]:
    """Measures the steps of an axis, along which one size varies.

    Args:
        options: parsed options of the command.
        axis: key of `AXES`, which names the size that varies.
        points: sizes and options of the steps.

    Returns:
        The rows of `harness.timed` with names such as "L 128, SwishRNN" and further fields: "axis",
        "mixer", "at" (value of the varied size), "milliseconds" (quartiles of the step time),
        "parameters", "mebibytes" (peak memory; 0 means that it was not measured) and "more".
    """

    def repeat(step: Callable, steps: int) -> None:
        for _ in range(steps):
            step()

    rows = []
    for point in points:
        say(f"{axis}: {point}")
        steps = max(1, TOKENS_PER_CALL // point.tokens)
        contenders = {
            mixer: harness.counted(steps * point.tokens, repeat, make_step(mixer, point), steps)
            for mixer in options.mixers
        }
        for row in harness.timed(contenders, options):
            row |= {"axis": axis, "mixer": row["name"], "at": getattr(point, AXES[axis][0])}
            row["name"] = f"{axis} {row['at']}, {row['mixer']}"
            row["milliseconds"] = harness.quartiles(1e3 * np.array(row["seconds"]) / steps)
            row["mebibytes"] = 0.0
            row["parameters"] = make_stack(row["mixer"], point).count_params()
            rows.append(row)
    if not options.no_memory:
        measurements = list(itertools.product(points, options.mixers))
        for row, peak in zip(rows, peaks(measurements, options.threads), strict=True):
            row["mebibytes"] = peak / 2**20
    for row in rows:
        peak_text = f"{row['mebibytes']:.1f}" if row["mebibytes"] else "-"
        more = {"ms per step": harness.cell(row["milliseconds"], 1), "peak MiB": peak_text}
        row["more"] = {**more, "parameters": f"{row['parameters']:,}"}
    return rows


@command.measures("Time and memory of a training step against its size", summary)
def main(options: argparse.Namespace) -> harness.Tables:
    """Runs the benchmark: measures steps along each axis in `--axes`."""
    points_by_axis = axis_points(options)
    harness.set_threads(options.threads)
    # Hides warnings about frequent retracing, because every point has its own `tf.function`.
    tf.get_logger().setLevel("ERROR")
    about = f"{options.dtype_policy}, dropout {options.dropout}{', XLA' * options.jit}"
    for axis, points in points_by_axis.items():
        sizes = {name: getattr(options, field) for name, (field, *_) in AXES.items()}
        if axis == "L" and options.tokens:
            sizes = {**sizes, "B": f"{options.tokens} / L"}
        fixed_sizes = ", ".join(f"{name} {size}" for name, size in sizes.items() if name != axis)
        yield f"{axis}: {fixed_sizes}; {about}", measure(options, axis, points)


if __name__ == "__main__":
    raise SystemExit(main())
