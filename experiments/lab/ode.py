"""Measures the local error of splitting schemes (Macaron paper, theorem 1).

    python -m experiments.lab.ode
    python -m experiments.lab.ode --runs runs/transformer runs/macaron --name ode_trained

A layer is a step of a solver for x' = F(x) + G(x), where the operator F is the attention sub-layer
and G is the feed-forward sub-layer. The first command above uses random operators with several
seeds. The second command uses every layer of trained pre-norm encoders and language models.

For each splitting scheme and step size, the command compares the output of a layer with the exact
solution, in float64. Each operator in a scheme is solved exactly, or by a solver that the networks
use, such as Euler's method. The command writes the order and the relative size of the errors to
NAME.md, and all local errors to NAME.json, in the folder --results.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np

from experiments import command_line as cli
from experiments import studies
from macaron_tf import load
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path, clear_errors, make_folders
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import TransformerBlock
from macaron_tf.layers.residual import Residual
from macaron_tf.layers.scheme import SOLVERS, Mix, scheme_text, steps_of
from macaron_tf.models.encoder import Encoder

# Yoshida 1990: the sub-steps of order 4 have the sizes _JUMP, 1 - 2 _JUMP and _JUMP.
_JUMP = 1 / (2 - 2 ** (1 / 3))
_STRANG = (Mix("channels", 0.5), Mix("tokens"), Mix("channels", 0.5))
# Splitting schemes. A scheme is a sequence of operators, each with a fraction of the step size.
SPLITTINGS = {
    "Lie-Trotter": (Mix("tokens"), Mix("channels")),
    "Strang-Marchuk, channels outside": _STRANG,
    "Strang-Marchuk, tokens outside": (Mix("tokens", 0.5), Mix("channels"), Mix("tokens", 0.5)),
    "Yoshida, order 4": tuple(
        Mix(mix.operator, jump * mix.step_size)
        for jump in (_JUMP, 1 - 2 * _JUMP, _JUMP)
        for mix in _STRANG
    ),
    "additive, parallel branches": (Mix("tokens"), Mix("channels", beside=True)),
}
_NONE = 1e-30  # step size so small that the step does not change x
EXACT = "exact"
SUB_STEPS = (EXACT, *SOLVERS)
STEPS = (1.0, 0.2, 0.1, 0.05, 0.025)  # the first value is the step size of a network
_FINE = 0.0125  # approximate maximum Runge-Kutta step of the solution that counts as exact
Flow = Callable[[np.ndarray], np.ndarray]


def run(options: argparse.Namespace) -> None:
    """Runs the command: measures every scheme on every pair of operators, and writes a report."""
    rows, out = [], as_path(options.results)
    measured = list(_operators(options))
    with clear_errors(f"the folder --results {out} cannot be made", "choose another path"):
        make_folders(out)
    for operators, seed, block, x in measured:
        print(f"{operators}, {seed}", flush=True)
        flows = flows_of(block, x)
        exact = [flow(functools.partial(_total, flows), x, step) for step in STEPS]
        for splitting, sub_step in itertools.product(SPLITTINGS, SUB_STEPS):
            ends = (one_step(block, flows, x, splitting, sub_step, step) for step in STEPS)
            errors = [
                float(np.linalg.norm(end - solution))
                for end, solution in zip(ends, exact, strict=True)
            ]
            row = {"operators": operators, "seed": seed, "splitting": splitting}
            # p for an error proportional to step^p, estimated from the two smallest step sizes
            row |= {"sub_step": sub_step, "order": float(np.log2(errors[-2] / errors[-1]))}
            rows.append({**row, "errors": dict(zip(map(str, STEPS), errors, strict=True))})
    title = "Local errors of splitting schemes"
    studies.write(out, options.name, options, title, _report(rows), rows=rows)


def _operators(options: argparse.Namespace) -> Iterator[tuple[str, str, Block, np.ndarray]]:
    """Yields origin, label of seed or layer, block and float64 input `(B, L, D)` to measure."""
    for seed in [] if options.runs else options.seeds:
        keras.utils.set_random_seed(seed)
        x = np.random.default_rng(seed).normal(size=(2, 16, 32))
        block = TransformerBlock(num_heads=4, feed_forward_dim=64, activation="tanh")
        block.build(x.shape)
        yield "random", f"seed {seed}", block, x
    for location in options.runs:
        encoder = getattr(load(location, trust_code=options.trust_code).network, "encoder", None)
        blocks = encoder.stack.blocks if isinstance(encoder, Encoder) else []
        if {name for block in blocks for name, _ in block.sublayers} != {"tokens", "channels"}:
            raise UserError(f"{location} has no token and channel mixers: give a Macaron")
        if encoder.config.norm != "pre":
            raise UserError(f"{location} is post-norm: give a run with model.norm=pre")
        rng = np.random.default_rng(0)
        ids = rng.integers(10, encoder.config.vocab_size, (2, 16))
        x = np.asarray(encoder.embed({"token_ids": ids}), "float64")
        for index, block in enumerate(encoder.stack.blocks):
            yield location, f"layer {index}", block, x
            x = np.asarray(block(x.astype("float32")), "float64")


def stepped(block: Block, x: np.ndarray, scheme: tuple[Mix, ...], solver: str) -> Block:
    """Builds a float64 block with a splitting scheme and the weights of `block`."""
    first = {operator: residual for operator, residual in reversed(block.sublayers)}
    width = next(mix.width for mix in block.scheme if mix.operator == "channels")
    # Parallel branches share the norm of the first branch, unless they repeat an earlier mixer with
    # its norm. Therefore each mixer first occurs in a step that does not change x.
    if any(mix.beside for mix in scheme):
        scheme = (*(Mix(operator, _NONE) for operator in first), *scheme)
    seen_operators, mixes = set(), []
    for mix in scheme:
        repeats = mix.operator in seen_operators
        mix_width = 1.0 if repeats or mix.operator == "tokens" else width
        mixes.append(dataclasses.replace(mix, width=mix_width, solver=solver, again=repeats))
        seen_operators.add(mix.operator)
    config = dataclasses.replace(block.config, scheme=scheme_text(mixes))
    copy = type(block)(config, causal=block.causal, dtype="float64")
    copy.build(x.shape)
    for operator, residual in copy.sublayers:
        residual.set_weights(first[operator].get_weights())
    return copy


def flow(operator: Flow, x: np.ndarray, time: float) -> np.ndarray:
    """Solves x' = operator(x) from 0 to `time` by the Runge-Kutta method of order 4."""
    count = max(8, round(abs(time) / _FINE))
    h = time / count
    for _ in range(count):
        k1 = operator(x)
        k2 = operator(x + h / 2 * k1)
        k3 = operator(x + h / 2 * k2)
        k4 = operator(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def flows_of(block: Block, x: np.ndarray) -> dict[str, Flow]:
    """Returns the operators of a block as functions in float64, by name."""

    def operator(residual: Residual) -> Flow:
        return lambda x: np.asarray(residual.sublayer(residual.layer_norm(x)))

    euler_block = stepped(block, x, SPLITTINGS["Lie-Trotter"], "euler")
    return {name: operator(residual) for name, residual in euler_block.sublayers}


def _total(flows: Mapping[str, Flow], x: np.ndarray) -> np.ndarray:
    """Computes F(x) + G(x)."""
    return sum(operator(x) for operator in flows.values())


def one_step(
    block: Block,
    flows: Mapping[str, Flow],
    x: np.ndarray,
    splitting: str,
    sub_step: str,
    step: float,
) -> np.ndarray:
    """Returns the end of one step of a splitting scheme from `x` `(B, L, D)`."""
    mixes = tuple(
        dataclasses.replace(mix, step_size=mix.step_size * step) for mix in SPLITTINGS[splitting]
    )
    if sub_step != EXACT:
        return np.asarray(stepped(block, x, mixes, sub_step)(x))
    for branches in steps_of(mixes):
        ends = [flow(flows[mix.operator], x, mix.step_size) for mix in branches]
        x = x + sum(end - x for end in ends)
    return x


def _report(rows: list[dict]) -> list[str]:
    """Returns the Markdown lines of the report, with a table for each origin of operators."""
    shown_steps = str(STEPS[-2]), str(STEPS[0])
    lines = [
        f"Order of the local error, estimated from the step sizes {STEPS[-2]} and {STEPS[-1]}. "
        f"The numbers in parentheses are ratios of local errors at the step sizes {STEPS[-2]} and "
        f"{STEPS[0]:g}: the error of the scheme over the error of a Transformer layer, which is "
        "Lie-Trotter splitting with Euler sub-steps. All numbers are means over the pairs of "
        "operators, and ± is the standard deviation.",
        "",
    ]
    for name, operator_rows in studies.grouped(rows, "operators").items():
        groups = studies.grouped(operator_rows, "splitting", "sub_step")
        baseline = groups["Lie-Trotter", "euler"]
        cells = {splitting: [splitting] for splitting in SPLITTINGS}
        for (splitting, _), members in groups.items():
            pairs = [*zip(members, baseline, strict=True)]
            ratios = (
                statistics.mean(own["errors"][step] / first["errors"][step] for own, first in pairs)
                for step in shown_steps
            )
            shown = "{} ({:.2g} and {:.2g})".format(studies.mean_of(members, "order", 2), *ratios)
            cells[splitting].append(shown)
        lines += [f"{name}:", "", *studies.table(("splitting", *SUB_STEPS), cells.values()), ""]
    return lines


main = cli.single_program(
    "python -m experiments.lab.ode",
    __doc__,
    "experiments.lab.ode:run",
    cli.path_argument(
        "--runs RUN", "trained pre-norm models (default: random operators)", nargs="+", default=[]
    ),
    cli.seeds([1, 2, 3], "random seeds of the random operators"),
    cli.path_argument(
        "--results DIR", "output folder (default: %(default)s)", default="experiments/results"
    ),
    cli.argument("--name", "name of the files without extension (default: ode)", default="ode"),
)

if __name__ == "__main__":
    raise SystemExit(main())
