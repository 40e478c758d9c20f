"""Splitting schemes of layers: which operators, in which order, with which step sizes.

A Transformer layer is Lie-Trotter splitting: a full step of the token mixer (attention), then one
of the channel mixer (feed-forward). A Macaron layer is Strang-Marchuk splitting: half a step of
channels, a full step of tokens, half a step of channels. A new block is a new scheme, or another
operator for tokens or channels.

In settings a scheme is a text that lists the operators in order:

    tokens, channels                        Lie-Trotter: a Transformer's
    channels/2, tokens, channels/2          Strang-Marchuk: Macaron's, half steps of half the width
    channels/2 width 1, tokens, channels/2 width 1      half steps of the full width
    2 x (tokens/2, channels/2)              each operator twice, half a step each time
    channels/2 width 1, tokens, channels/2 again        Strang's splitting of two operators
    channels/2 by heun, tokens by heun, channels/2 by heun      sub-steps of second order
    channels/2 with relu, tokens, channels/2 with gelu      another activation in each half
    tokens & channels                       parallel branches: GPT-J's and PaLM's

`/N` after an operator means a step of size 1/N, and for channels also 1/N of the width. `step S`
and `width W`, written after it, set only one of the two, to a fraction or a decimal number.

Each operator has its own weights. With `again` it uses the weights of its previous mention, as in
the splitting of two operators. `with ACTIVATION` replaces the setting `activation` in that
feed-forward. `by SOLVER` names the ODE solver of the step, a key of `SOLVERS`; the default is
Euler's.

A decoder attends its memory right after tokens, with the same step size, or where the scheme has
`memory`; blocks without cross-attention ignore `memory`.

`&` joins parallel branches (additive splitting): all of them start from the same x, and their
steps are added. They share the norm of the first branch; a branch with `again` that reuses earlier
weights has the norm of those. In a decoder, attention to the memory is one more branch.
"""

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import activation

OPERATORS = ("tokens", "memory", "channels")

# Explicit Runge-Kutta methods for x' = f(x), with one row per evaluation of f. Each row has the
# weights of the slopes found so far, which give the point of the next evaluation; those in the
# last row give the end of the step.
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
        operator: `"tokens"` (attention; diffusion), `"channels"` (feed-forward; convection), or
            `"memory"` (a decoder's attention to the encoder's output).
        step_size: size of the step, not 0; schemes of high order also have negative ones.
        width: fraction of `feed_forward_dim` that a channel mixer gets; 1 for other operators.
        solver: solver of the step, a key of `SOLVERS`. All evaluations use the same weights:
            `"midpoint"` and `"heun"` have two, `"rk4"` four.
        again: whether to use the weights of the operator's previous mention, with their width and
            activation.
        activation: activation of the feed-forward's inner channels; None: the block's setting.
        beside: whether this is a parallel branch that starts where the previous operator starts.
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
            raise ValueError(
                f"{self.operator} with a step of 0 do nothing: leave {self.operator} out"
            )
        if self.width <= 0:
            raise ValueError(f"{self.operator} have width {self.width}: give one above 0")
        if self.width != 1 and self.operator != "channels":
            raise ValueError(f"{self.operator} take no width, only channels do: leave width out")
        if self.width != 1 and self.again:
            raise ValueError("'again' uses the width of the earlier channels: leave width out")
        if self.activation is not None:
            if self.operator != "channels" or self.again:
                whose = "channels with 'again'" if self.again else self.operator
                raise ValueError(f"{whose} take no activation: leave out 'with {self.activation}'")
            activation(self.activation)

    def __str__(self):
        width = f" width {self.width}" if self.operator == "channels" and not self.again else ""
        options = f" with {self.activation}" if self.activation else ""
        options += f" by {self.solver}" if self.solver != "euler" else ""
        return f"{self.operator} step {self.step_size}{width}{options}{' again' * self.again}"


_LIMIT = 100  # most operators of a layer
_SINGLE = "& joins single operators: write repeated ones out, such as 'tokens & tokens & channels'"
_GROUP = re.compile(r"(\d+)\s*x\s*\(([^()]*)\)")
_NUMBER = r"(-?[\d./]{1,30}(?:e-?\d{1,2})?)"
_TERM = re.compile(
    rf"(?:(\d+)\s*x\s+)?(\w+)(?:\s*/\s*(\d+))?(?:\s+step\s+{_NUMBER})?(?:\s+width\s+{_NUMBER})?"
    r"(?:\s+with\s+(\w+))?(?:\s+by\s+(\w+))?(\s+again)?"
)


@functools.cache
def parse_scheme(text: str) -> tuple[Mix, ...]:
    """Parses the text of a scheme into its operators.

    Raises:
        ValueError: the text is not valid; the message is a clause without the scheme itself.
    """
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
            raise ValueError(
                f"'again' needs {mix.operator} earlier in the scheme: leave it out here"
            )
    return scheme


def steps_of(scheme: Iterable[Mix]) -> list[list[Mix]]:
    """The operators grouped by step; parallel branches are one step."""
    steps: list[list[Mix]] = []
    for mix in scheme:
        if steps and mix.beside:
            steps[-1].append(mix)
        else:
            steps.append([mix])
    return steps


def spelled(scheme: Iterable[Mix], without: Collection[str] = ()) -> str:
    """The text of a scheme for `parse_scheme`, without the operators named in `without`."""
    steps = [[str(mix) for mix in s if mix.operator not in without] for s in steps_of(scheme)]
    return ", ".join(" & ".join(step) for step in steps if step)


def _branches(terms: list[str]) -> list[Mix]:
    """The operators of one step: its parallel branches, or the repeats of its single term."""
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
            "parallel branches, such as 'channels/2, tokens', 'channels step 1/2 width 1, tokens "
            "by heun', 'tokens & channels' or '2 x (tokens, channels)'"
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
        raise ValueError(f"{text} is not a number: write one such as 1/2 or 0.5") from None


def _count(text: str, length: int) -> int:
    """Parses how often `length` operators are repeated."""
    count = int(text)
    if not 1 <= count * length <= _LIMIT:
        raise ValueError(
            f"{count} x {length} operators are too few or too many: give 1 to {_LIMIT} in all"
        )
    return count
