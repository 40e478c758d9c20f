"""Splitting schemes of Transformer layers: the sub-layers in order, with their step sizes.

A residual layer is one step of an ODE solver. A Transformer layer is Lie-Trotter splitting: a full
step of the token mixer (attention), then a full step of the channel mixer (feed-forward). A Macaron
layer is Strang-Marchuk splitting: half a step of channels, a full step of tokens, and half a step
of channels. To define a new block, write a new scheme or replace an operator.

In settings, a scheme is a string that lists the operators in order:

    tokens, channels                        Lie-Trotter splitting: the Transformer
    channels/2, tokens, channels/2          Strang-Marchuk: Macaron, half steps at half the width
    channels/2 width 1, tokens, channels/2 width 1      half steps at full width
    2 x (tokens/2, channels/2)              each operator twice, half a step each time
    channels/2 width 1, tokens, channels/2 again        Strang splitting with two operators
    channels/2 by heun, tokens by heun, channels/2 by heun      second-order sub-steps
    channels/2 with relu, tokens, channels/2 with gelu      another activation in each half
    tokens & channels                       parallel branches: GPT-J and PaLM

`/N` after an operator sets the step size to 1/N. For channels, `/N` also sets the width to 1/N of
`feed_forward_dim`. `step S` and `width W` after an operator set only the step size or only the
width. S and W are fractions or decimal numbers.

Each operator has its own weights. With `again`, an operator reuses the weights and the norm of its
previous occurrence in the scheme. `with ACTIVATION` replaces the setting `activation` in one
feed-forward layer. `by SOLVER` names the ODE solver of the step, a key of `SOLVERS`. The default
solver is `euler`.

In a decoder, cross-attention to the encoder's output follows each `tokens` with the same step size,
unless the scheme places cross-attention by `memory`. Blocks without cross-attention ignore
`memory`.

`&` joins parallel branches (additive splitting). All branches start from the same x, and the layer
adds their steps. The branches share the norm of the first branch, except branches with `again`. In
a decoder, cross-attention is one more branch.
"""

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import activation

OPERATORS = ("tokens", "memory", "channels")

# Explicit Runge-Kutta methods for x' = f(x), with one row per evaluation of f. A row holds the
# weights of the slopes found so far. The weights in the last row give the end of the step, and the
# weights in every other row give the point of the next evaluation.
SOLVERS: dict[str, tuple[tuple[float, ...], ...]] = {
    "euler": ((1.0,),),
    "midpoint": ((1 / 2,), (0.0, 1.0)),
    "heun": ((1.0,), (1 / 2, 1 / 2)),
    "rk4": ((1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


@dataclass(frozen=True)
class Mix:
    """One operator of a splitting scheme.

    Attributes:
        operator: `"tokens"` (attention, the diffusion term of the ODE), `"channels"` (feed-forward,
            the convection term), or `"memory"` (a decoder's cross-attention).
        step_size: size of the step, which must not be 0. High-order schemes have negative step
            sizes too.
        width: fraction of `feed_forward_dim` for a channel mixer. Other operators require 1.
        solver: ODE solver of the step, a key of `SOLVERS`. All evaluations in a step use the same
            weights. `"midpoint"` and `"heun"` evaluate the operator twice, and `"rk4"` four times.
        again: whether to reuse the weights, norm, width and activation of the operator's previous
            occurrence.
        activation: activation of the feed-forward layer's inner channels. `None` means the block's
            setting.
        beside: whether the operator is a parallel branch, which starts from the same x as the
            previous operator.
    """

    operator: str
    step_size: float = 1.0
    width: float = 1.0
    solver: str = "euler"
    again: bool = False
    activation: str | None = None
    beside: bool = False

    def __post_init__(self):
        check_choice("operator", self.operator, OPERATORS)
        check_choice("solver", self.solver, tuple(SOLVERS))
        if self.step_size == 0:
            raise ValueError(f"step size 0 of {self.operator} has no effect: leave it out")
        if self.width <= 0:
            raise ValueError(f"width {self.width} of {self.operator} must be above 0")
        if self.width != 1 and self.operator != "channels":
            raise ValueError(f"{self.operator} cannot have a width: leave width out")
        if self.width != 1 and self.again:
            raise ValueError("'channels again' reuses the earlier width: leave width out")
        if self.activation is not None:
            if self.operator != "channels" or self.again:
                subject = f"{self.operator}{' again' * self.again}"
                raise ValueError(f"{subject} take no activation: omit 'with {self.activation}'")
            activation(self.activation)

    def __str__(self):
        width = f" width {self.width}" if self.operator == "channels" and not self.again else ""
        options = f" with {self.activation}" if self.activation else ""
        options += f" by {self.solver}" if self.solver != "euler" else ""
        return f"{self.operator} step {self.step_size}{width}{options}{' again' * self.again}"


_LIMIT = 100  # maximum number of operators in a layer
_REPEAT = re.compile(r"(\d+)\s*x\s*(\([^()]*\)|[^,&()\s][^,&()]*)")
_NUMBER = r"(-?[\d./]{1,30}(?:e-?\d{1,2})?)"
_TERM = re.compile(
    rf"(\w+)(?:\s*/\s*(\d+))?(?:\s+step\s+{_NUMBER})?(?:\s+width\s+{_NUMBER})?"
    r"(?:\s+with\s+(\w+))?(?:\s+by\s+(\w+))?(\s+again)?"
)


@functools.cache
def parse_scheme(text: str) -> tuple[Mix, ...]:
    """Parses the string form of a scheme into operators, or raises a ValueError.

    The message does not contain the scheme, so that the caller can put the name of the setting in
    front.
    """
    while repeat := _REPEAT.search(text):
        before, after = text[: repeat.start()], text[repeat.end() :]
        if before.rstrip().endswith("&") or after.lstrip().startswith("&"):
            raise ValueError("& cannot join a repeat such as '2 x tokens': write each operator out")
        count, part = int(repeat[1]), repeat[2].strip("()")
        if not 1 <= count * (length := part.count(",") + 1) <= _LIMIT:
            raise ValueError(f"{count} x {length} operators: give 1 to {_LIMIT} operators in all")
        text = before + ", ".join([part] * count) + after
    scheme = tuple(
        _parse_term(term.strip(), beside=index > 0)
        for step in text.split(",")
        for index, term in enumerate(step.split("&"))
    )
    if len(scheme) > _LIMIT:
        raise ValueError(f"{len(scheme)} operators are too many: give at most {_LIMIT} operators")
    for index, mix in enumerate(scheme):
        if mix.again and not any(mix.operator == earlier.operator for earlier in scheme[:index]):
            raise ValueError(f"'{mix.operator} again' repeats nothing earlier: leave out 'again'")
    return scheme


def steps_of(scheme: Iterable[Mix]) -> list[list[Mix]]:
    """Groups operators by step. Parallel branches belong to the same step."""
    steps: list[list[Mix]] = []
    for mix in scheme:
        if not (steps and mix.beside):
            steps.append([])
        steps[-1].append(mix)
    return steps


def scheme_text(scheme: Iterable[Mix], without: Collection[str] = ()) -> str:
    """Formats a scheme without the operators in `without`, or returns "" if no operator remains."""
    steps = [[str(mix) for mix in s if mix.operator not in without] for s in steps_of(scheme)]
    return ", ".join(" & ".join(step) for step in steps if step)


def _parse_term(term: str, beside: bool) -> Mix:
    if not (match := _TERM.fullmatch(term)):
        raise ValueError(f"{term!r} is not a valid operator: write terms such as 'tokens by heun'")
    operator, divisor, step, width, activation_name, solver, again = match.groups()
    share = _parse_number(f"1/{divisor or 1}")
    step_size = _parse_number(step) if step else share
    default = share if operator == "channels" and not again else 1.0
    width = _parse_number(width) if width else default
    options = (solver or "euler", bool(again), activation_name, beside)
    return Mix(operator, step_size, width, *options)


def _parse_number(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ZeroDivisionError, ValueError):
        raise ValueError(f"{text} is not a number: give a number such as 1/2 or 0.5") from None
