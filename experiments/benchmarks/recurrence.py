"""How long SwishRNN's recurrence and gate take, forward and backward, by each implementation.

    python -m experiments.benchmarks.recurrence --out DIR

Ratios are to `tf.scan` differentiated by TensorFlow, the reference. The implementations' results
are compared first: a fast wrong one is refused.
"""

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.benchmarks.harness import (
    add_number,
    benchmark_parser,
    interleave,
    machine,
    publish,
    set_threads,
    summary,
)
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.kernels import swish_gate

REFERENCE = "scan"
# Of each contender: the implementation, and whether XLA compiles it.
CONTENDERS = {
    REFERENCE: ("scan", False),
    "scan, XLA": ("scan", True),
    "loop": ("loop", False),
    "loop, XLA": ("loop", True),
    "xla": ("xla", True),
    "native": ("native", False),
}
# What the paper's widths are here: (rows, positions, inner width).
SETTINGS = {"small": (32, 128, 344), "base": (4, 512, 2048)}


def contender(implementation: str, jit: bool, arrays: list, step_size: int, gate: str):
    """A function that computes outputs and gradients of `arrays`."""

    @tf.function(jit_compile=jit, autograph=False)
    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = swish_gate(*tensors, step_size, gate, implementation=implementation)
        return y, *tape.gradient(y, tensors, output_gradients=tf.ones_like(y))

    return lambda: run(*arrays)


def _inputs(shape: tuple[int, int, int], dtype: str, seed: int) -> list[tf.Tensor]:
    rng = np.random.default_rng(seed)
    rows, length, width = shape
    x = tf.constant(rng.normal(size=(rows, length, 2 * width)), dtype)
    alpha = tf.ones(width) + tf.constant(rng.normal(size=width) / 10, tf.float32)
    biases = [tf.constant(rng.normal(size=width) / 10, tf.float32) for _ in range(3)]
    return [x, alpha, biases[0], *(tf.cast(bias, dtype) for bias in biases[1:])]


def _check_agreement(runs: dict[str, Callable], dtype: str) -> None:
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    reference = runs[REFERENCE]()
    for name, run in runs.items():
        for mine, theirs in zip(run(), reference, strict=True):
            mine, theirs = (tf.cast(array, tf.float32) for array in (mine, theirs))
            error = float(tf.reduce_max(tf.abs(mine - theirs)) / tf.reduce_max(tf.abs(theirs)))
            if not error < tolerance:
                raise UserError(f"{name} differs from {REFERENCE} by {error:.1e}: not timed")


def _timed(run: Callable, units: int) -> Callable[[], int]:
    def work() -> int:
        run()[0].numpy()  # the work is done when its result is there
        return units

    return work


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Times all contenders and prints the tables."""
    parser = benchmark_parser("recurrence", __doc__, rounds=9)
    parser.add_argument(
        "--settings",
        nargs="+",
        default=list(SETTINGS),
        choices=SETTINGS,
        metavar="NAME",
        help="small: 32 x 128 positions, width 344; base: 4 x 512, width 2048 (default both)",
    )
    add_number(parser, "--step-size", 1, "k")
    parser.add_argument("--gate", default="gelu", help="gelu, gelu_tanh or sigmoid")
    parser.add_argument("--dtype", default="float32", help="or bfloat16 (default %(default)s)")
    add_number(parser, "--threads", 2, "threads")
    options = parser.parse_args(arguments)
    set_threads(options.threads)
    contenders = dict(CONTENDERS)
    from macaron_tf.kernels import native

    if not native.available():
        del contenders["native"]
    tables = {}
    for setting in options.settings:
        rows, length, width = SETTINGS[setting]
        arrays = _inputs(SETTINGS[setting], options.dtype, options.seed)
        runs = {
            name: contender(*how, arrays, options.step_size, options.gate)
            for name, how in contenders.items()
        }
        _check_agreement(runs, options.dtype)
        samples = interleave(
            {name: _timed(run, rows * length) for name, run in runs.items()},
            options.rounds,
            2,
        )
        title = f"{setting}: {rows} x {length} positions, width {width}, k {options.step_size}"
        tables[f"{title}, {options.dtype}"] = summary(samples, REFERENCE)
    facts = machine(options.threads, ("tensorflow", "keras"))
    title = "SwishRNN's recurrence and gate, forward and backward"
    publish(options.out, title, facts, tables, "positions")


if __name__ == "__main__":
    sys.exit(main())
