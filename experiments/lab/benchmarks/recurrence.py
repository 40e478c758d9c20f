"""Times all implementations of the SwishRNN recurrence with its gate, forward and backward.

    python -m experiments.lab.benchmarks.recurrence --out DIR

Ratios are relative to the reference, `tf.scan` with automatic differentiation. Before the timing,
the benchmark checks that all implementations compute the same results. If the native kernels are
not available, the native implementation is left out.
"""

import argparse
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.lab.benchmarks.harness import (
    Benchmark,
    Tables,
    counted,
    set_threads,
    several,
    timed,
)
from macaron_tf.cli.arguments import argument, count
from macaron_tf.errors import UserError
from macaron_tf.kernels import native, swish_gate

REFERENCE = "scan"
# Dict mapping a contender to the name of the implementation and whether XLA compiles the step.
CONTENDERS = {
    REFERENCE: ("scan", False),
    "scan, XLA": ("scan", True),
    "loop": ("loop", False),
    "loop, XLA": ("loop", True),
    "xla": ("xla", True),
    "native": ("native", False),
}
# Input shapes for small and base models, as (rows, positions, inner width).
SETTINGS = {"small": (32, 128, 344), "base": (4, 512, 2048)}

command = Benchmark(
    "recurrence",
    __doc__,
    "positions",
    ("tensorflow", "keras"),
    several(
        "--settings",
        SETTINGS,
        "sizes of the input: small (32 rows of 128 positions, width 344) or base (4 rows of 512 "
        "positions, width 2048)",
    ),
    count("--step-size", "step size k of the recurrence", 1),
    argument(
        "--gate",
        "activation function of the gate: 'gelu', 'gelu_tanh' or 'sigmoid'",
        default="gelu",
    ),
    argument("--dtype", "dtype of the input: 'float32' or 'bfloat16'", default="float32"),
    rounds=9,
)


def contender(implementation: str, jit: bool, arrays: list, step_size: int, gate: str) -> Callable:
    """Returns a function that computes the output of the recurrence and all gradients.

    Args:
        implementation: name of a SwishRNN implementation; see `swish_gate`.
        jit: whether XLA compiles the computation.
        arrays: inputs of `swish_gate`; see `_inputs`.
        step_size: step size k of the recurrence.
        gate: activation function of the gate.
    """

    @tf.function(jit_compile=jit, autograph=False)
    def step(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = swish_gate(*tensors, step_size, gate, implementation=implementation)
        return y, *tape.gradient(y, tensors, output_gradients=tf.ones_like(y))

    return lambda: step(*arrays)


def _inputs(shape: tuple[int, int, int], dtype: str, seed: int) -> list[tf.Tensor]:
    rng = np.random.default_rng(seed)
    rows, length, width = shape
    x = tf.constant(rng.normal(size=(rows, length, 2 * width)), dtype)
    alpha = tf.ones(width) + tf.constant(rng.normal(size=width) / 10, tf.float32)
    biases = [tf.constant(rng.normal(size=width) / 10, tf.float32) for _ in range(3)]
    return [x, alpha, biases[0], *(tf.cast(bias, dtype) for bias in biases[1:])]


def _check_agreement(functions: dict[str, Callable], dtype: str) -> None:
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    reference = functions[REFERENCE]()
    for name, function in functions.items():
        for actual, expected in zip(function(), reference, strict=True):
            actual, expected = (tf.cast(array, tf.float32) for array in (actual, expected))
            error = float(
                tf.reduce_max(tf.abs(actual - expected)) / tf.reduce_max(tf.abs(expected))
            )
            if not error < tolerance:
                raise UserError(
                    f"{name} differs from {REFERENCE} by {error:.1e}, more than {tolerance:.0e}: "
                    "report this as a bug"
                )


@command.measures("The recurrence and gate of SwishRNN, forward and backward")
def main(options: argparse.Namespace) -> Tables:
    """Runs the benchmark: times all implementations in each setting."""
    set_threads(options.threads)
    for setting in options.settings:
        rows, length, width = SETTINGS[setting]
        arrays = _inputs(SETTINGS[setting], options.dtype, options.seed)
        functions = {
            name: contender(implementation, jit, arrays, options.step_size, options.gate)
            for name, (implementation, jit) in CONTENDERS.items()
            if name != "native" or native.available()
        }
        _check_agreement(functions, options.dtype)
        # `numpy()` waits for the result.
        contenders = {
            name: counted(rows * length, lambda function=function: function()[0].numpy())
            for name, function in functions.items()
        }
        shape = f"{rows} x {length} positions, width {width}, k {options.step_size}"
        yield f"{setting}: {shape}, {options.dtype}", timed(contenders, options)


if __name__ == "__main__":
    raise SystemExit(main())
