"""Layers as splitting schemes: which operators, in which order, with which step sizes.

A Transformer layer is Lie-Trotter splitting (mix tokens, then channels, full steps); a Macaron
layer is Strang-Marchuk splitting (half a step of channels, a full step of tokens, half a step of
channels). A new block is a new `scheme`, or another operator in place of one of the two.

In settings a scheme is text, its operators in order:

    tokens, channels                        Lie-Trotter: a Transformer's
    channels/2, tokens, channels/2          Strang-Marchuk: Macaron's, half steps of half the width
    channels/2 width 1, tokens, channels/2 width 1      half steps of the full width
    2 x (tokens/2, channels/2)              each operator twice, half a step each time
    channels/2 width 1, tokens, channels/2 again        Strang's splitting of two operators
    channels/2 by heun, tokens by heun, channels/2 by heun      sub-steps of second order
    channels/2 with relu, tokens, channels/2 with gelu      another activation in each half
    tokens & channels                       parallel branches: GPT-J's and PaLM's

`/N` is a step of 1/N and, of channels, 1/N of the width; `step S` and `width W` after it set
one alone, to a fraction or a decimal. `again` applies the weights of the operator's last mention a
second time, as a splitting of two operators does; without it every mention has weights of its own.
`with ACTIVATION` replaces the setting `activation` in that feed-forward; `by SOLVER` takes the
sub-step by a solver of `SOLVERS`, Euler's by default. A decoder attends its memory right after
tokens, by a step of their size, or exactly where `memory` stands, which a block without
cross-attention passes over.

`&` joins branches: each takes its step from the same x, and x moves by the sum of the steps, which
is additive splitting. Branches share one norm, the first one's, but those with `again` before the
sub-layer have the norm of their weights. Beside other branches, a decoder's attention to its
memory is one more.
"""

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import activation

OPERATORS = ("tokens", "memory", "channels")

# Explicit Runge-Kutta methods of x' = f(x), a row for each evaluation of f. A row weighs the slopes
# found so far, for the point where f is evaluated next; the last row gives the step's end.
SOLVERS: dict[str, tuple[tuple[float, ...], ...]] = {
    "euler": ((1.0,),),
    "midpoint": ((1 / 2,), (0.0, 1.0)),
    "heun": ((1.0,), (1 / 2, 1 / 2)),
    "rk4": ((1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


@dataclass(frozen=True)
class Mix:
    """One operator of a scheme.

    Attributes:
        operator: `"tokens"` (attention: diffusion), `"channels"` (feed-forward: convection), or
            `"memory"` (a decoder's attention to the encoder's output).
        step_size: length of the step, not 0; schemes of high order have negative ones too.
        width: share of `feed_forward_dim` that a channel mixer gets; 1 for the other operators.
        solver: of the sub-step, a name of `SOLVERS`: two evaluations of the operator, with the
            same weights, for `"midpoint"` and `"heun"`, four for `"rk4"`.
        again: apply the weights of the operator's last mention, whose width and activation count.
        activation: of the feed-forward's inner channels; None = the block's setting.
        beside: start where the operator before starts, a branch of the same step.
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
            raise ValueError(f"{self.operator} with a step of 0 do nothing: leave them out")
        if self.width <= 0:
            raise ValueError(f"{self.operator} need a width above 0, not {self.width}")
        if self.width != 1 and self.operator != "channels":
            raise ValueError(f"channels alone have a width, not {self.operator}")
        if self.width != 1 and self.again:
            raise ValueError("again has the width of the weights that it applies: leave width out")
        if self.activation is not None:
            if self.operator != "channels" or self.again:
                whose = "weights that are applied again" if self.again else self.operator
                raise ValueError(f"{whose} take no activation: leave out 'with {self.activation}'")
            activation(self.activation)

    def __str__(self):
        width = f" width {self.width}" if self.operator == "channels" and not self.again else ""
        options = f" with {self.activation}" if self.activation else ""
        options += f" by {self.solver}" if self.solver != "euler" else ""
        return f"{self.operator} step {self.step_size}{width}{options}{' again' * self.again}"


_LIMIT = 100  # operators of a layer
_SINGLE = (
    "& joins single operators: write out what is repeated, such as 'tokens & tokens & channels'"
)
_GROUP = re.compile(r"(\d+)\s*x\s*\(([^()]*)\)")
_NUMBER = r"(-?[\d./]{1,30}(?:e-?\d{1,2})?)"
_TERM = re.compile(
    rf"(?:(\d+)\s*x\s+)?(\w+)(?:\s*/\s*(\d+))?(?:\s+step\s+{_NUMBER})?(?:\s+width\s+{_NUMBER})?"
    r"(?:\s+with\s+(\w+))?(?:\s+by\s+(\w+))?(\s+again)?"
)


@functools.cache
def parse_scheme(text: str) -> tuple[Mix, ...]:
    """The operators that a scheme's text spells; a ValueError says in a clause where it fails."""
    while group := _GROUP.search(text):  # the innermost first
        repeated = [group[2]] * _count(group[1], group[2].count(",") + 1)
        before, after = text[: group.start()], text[group.end() :]
        if before.rstrip().endswith("&") or after.lstrip().startswith("&"):
            raise ValueError(_SINGLE)
        text = before + ", ".join(repeated) + after
    scheme = tuple(mix for step in text.split(",") for mix in _branches(step.split("&")))
    if len(scheme) > _LIMIT:
        raise ValueError(f"a layer has at most {_LIMIT} operators, not {len(scheme)}")
    for number, mix in enumerate(scheme):
        if mix.again and not any(mix.operator == one.operator for one in scheme[:number]):
            raise ValueError(f"{mix.operator} again, but not before: leave out again")
    return scheme


def steps_of(scheme: Iterable[Mix]) -> list[list[Mix]]:
    """The operators by steps: those of one step stand beside each other."""
    steps: list[list[Mix]] = []
    for mix in scheme:
        if steps and mix.beside:
            steps[-1].append(mix)
        else:
            steps.append([mix])
    return steps


def spelled(scheme: Iterable[Mix], without: Collection[str] = ()) -> str:
    """The text of a scheme, which `parse_scheme` reads, without some operators."""
    steps = [[str(mix) for mix in s if mix.operator not in without] for s in steps_of(scheme)]
    return ", ".join(" & ".join(step) for step in steps if step)


def _branches(terms: list[str]) -> list[Mix]:
    """The operators of one step, or of one term that is repeated."""
    mixes = [_mixes(term.strip()) for term in terms]
    if len(terms) == 1:
        return mixes[0]
    if any(len(repeated) > 1 for repeated in mixes):
        raise ValueError(_SINGLE)
    return [replace(mix, beside=number > 0) for number, (mix,) in enumerate(mixes)]


def _mixes(term: str) -> list[Mix]:
    found = _TERM.fullmatch(term)
    if not found:
        raise ValueError(
            f"{term!r} cannot be read: write operators with commas between them, or & between "
            "branches, such as 'channels/2, tokens', 'channels step 1/2 width 1, tokens by heun', "
            "'tokens & channels' or '2 x (tokens, channels)'"
        )
    count, operator, parts, step, width, function, solver, again = found.groups()
    share = _number(f"1/{parts or 1}")
    step_size = _number(step) if step else share
    default = share if operator == "channels" and not again else 1.0
    width = _number(width) if width else default
    mix = Mix(operator, step_size, width, solver or "euler", bool(again), function)
    return [mix] * _count(count or "1", 1)


def _number(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ZeroDivisionError, ValueError):
        raise ValueError(f"{text} is no number") from None


def _count(text: str, length: int) -> int:
    """The number of repeats of `length` operators."""
    count = int(text)
    if not 1 <= count * length <= _LIMIT:
        raise ValueError(f"{count} x {length} operators are not 1 to {_LIMIT}")
    return count
