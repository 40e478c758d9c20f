"""Reads the TPU compiler's estimate of a program's time from the optimized HLO text.

The compiler notes `estimated_cycles` at each instruction; a fusion's number includes its parts. A
loop's body is listed once, and counts here as often as it runs. Of the branches of a condition the
most expensive one counts. The optimizer's step is in such a branch, because updates with a NaN
gradient are skipped.
"""

import collections
import math
import re
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][a-z0-9\-]*)\((.*)$")
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')
_NAME = re.compile(r'op_name="([^"]*)"')
_COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
_ARRAY = re.compile(r"\b(?:pred|[a-z]+?(\d+)[a-z0-9]*)\[([\d,]*)\]")  # bf16[8,128], pred[]
_NO_ESTIMATE = 2**60  # the compiler's figure for "unknown" is the greatest integer


class Loop(NamedTuple):
    """A while loop.

    Attributes:
        name: name of the TensorFlow op that it comes from.
        trips: number of iterations; None: the text does not say, and one was counted.
        cycles: cycles of one iteration, inner loops included.
    """

    name: str
    trips: int | None
    cycles: int


class Estimate(NamedTuple):
    """The cycles of a program.

    Attributes:
        cycles: cycles of one run; a loop's cycles count once for each iteration.
        loop_cycles: the part of `cycles` in loops.
        by_kind: cycles outside loops by kind of instruction, most first.
        loops: the outermost loops.
    """

    cycles: int
    loop_cycles: int
    by_kind: dict[str, int]
    loops: list[Loop]

    def as_dict(self) -> dict:
        """The estimate as a dict for JSON."""
        return {**self._asdict(), "loops": [loop._asdict() for loop in self.loops]}


class _Instruction(NamedTuple):
    name: str
    kind: str
    rest: str  # from the operands on

    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.rest.partition(")")[0])

    def called(self, *keys: str) -> list[str]:
        """Names of the computations that attributes such as `body=` refer to."""
        found = []
        for key in keys:
            for braced, plain in re.findall(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.rest):
                found += re.findall(r"[\w.\-]+", braced) if braced else [plain]
        return found

    def number(self) -> int | None:
        """The value of an integer constant, else None."""
        text = self.rest.partition(")")[0]
        known = self.kind == "constant" and re.fullmatch(r"-?\d+", text)
        return int(text) if known else None

    def place(self) -> int | None:
        """The index in a tuple that a `get-tuple-element` reads; None for other instructions."""
        if self.kind != "get-tuple-element":
            return None
        return int(re.search(r"\bindex=(\d+)", self.rest.partition(")")[2])[1])


_UNKNOWN = _Instruction("", "", "")


class _Computation(dict[str, _Instruction]):
    """The instructions of a computation by name; the last one is the root."""

    def final(self, name: str) -> _Instruction:
        """The instruction called `name`, or the one that it copies."""
        instruction = self.get(name, _UNKNOWN)
        while instruction.kind in ("copy", "bitcast"):
            instruction = self.get(instruction.operands()[0], _UNKNOWN)
        return instruction


def collectives(text: str) -> dict[str, int]:
    """Bytes of the arrays that a core receives by collectives, by kind, in an optimized module."""
    found = collections.Counter()
    for shapes, kind, start in _COLLECTIVE.findall(text):
        sizes = [
            math.prod(map(int, filter(None, shape.split(",")))) * -(-int(bits or 8) // 8)
            for bits, shape in _ARRAY.findall(shapes)
        ]
        # The result of an all-gather-start or a permutation's start includes its operand and flags.
        found[kind] += max(sizes) if start and kind != "all-reduce" else sum(sizes)
    return dict(found.most_common())


def estimate(text: str) -> Estimate:
    """Sums the estimates of an optimized HLO module; raises a ValueError if it has none."""
    module: dict[str, _Computation] = {}
    current, entry = None, None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = module.setdefault(header[2], _Computation())
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current[found[1]] = _Instruction(*found.groups())
    if entry is None or not _ESTIMATE.search(text):
        raise ValueError("no HLO module with cycle estimates")
    return _sum(module, entry)


def _sum(module: dict[str, _Computation], name: str) -> Estimate:
    by_kind, loops, loop_cycles = collections.Counter(), [], 0
    for instruction in module.get(name, {}).values():
        inner = []
        match instruction.kind:
            case "while":
                parts = instruction.called("body", "condition")
                cycles = sum(_sum(module, part).cycles for part in parts)
                trips = _trips(module, module[name], instruction)
                label = _NAME.search(instruction.rest)
                loops.append(Loop(label[1] if label else instruction.name, trips, cycles))
                loop_cycles += cycles * (1 if trips is None else trips)
                continue
            case "conditional":
                keys = ("branch_computations", "true_computation", "false_computation")
                branches = [_sum(module, branch) for branch in instruction.called(*keys)]
                inner = [max(branches, key=lambda branch: branch.cycles)]
            case "call" | "async-start":
                inner = [_sum(module, called) for called in instruction.called("to_apply", "calls")]
        for part in inner:
            by_kind.update(part.by_kind)
            loops += part.loops
            loop_cycles += part.loop_cycles
        noted = _ESTIMATE.search(instruction.rest)
        if noted and not inner and int(noted[1]) < _NO_ESTIMATE:
            by_kind[instruction.kind] += int(noted[1])
    total = sum(by_kind.values()) + loop_cycles
    return Estimate(total, loop_cycles, dict(by_kind.most_common()), loops)


def _trips(module: dict[str, _Computation], around: _Computation, loop: _Instruction) -> int | None:
    """The number of iterations of a loop, as noted or from its condition `counter < bound`.

    If the condition has several such comparisons, the first that fails ends the loop.
    """
    if noted := _TRIPS.search(loop.rest):
        return int(noted[1])
    condition = module[loop.called("condition")[0]]
    found = []
    for compare in condition.values():
        direction = re.search(r"direction=(LT|LE|GT|GE)", compare.rest)
        if compare.kind != "compare" or not direction:
            continue
        counter, bound = map(condition.final, compare.operands())
        if direction[1] in ("GT", "GE"):  # bound > counter
            counter, bound = bound, counter
        limit = bound.number()
        if limit is None:
            limit = _at_start(module, around, loop, bound.place())
        start = _at_start(module, around, loop, counter.place())
        step = _step(module, loop, counter.place())
        if None not in (limit, step, start) and step >= 1:
            distance = limit - start + (direction[1] in ("LE", "GE"))
            found.append(max(0, -(-distance // step)))
    return min(found, default=None)


def _at_start(
    module: dict[str, _Computation], around: _Computation, loop: _Instruction, place: int | None
) -> int | None:
    """A number in the state with which a loop starts; None if it is unknown.

    The loop of a gradient runs as often as the forward loop did, so its bound is the final counter
    of that loop.
    """
    state = around.final(loop.operands()[0])
    if place is None or state.kind != "tuple":
        return None
    entered = around.final(state.operands()[place])
    if entered.place() is None:
        return entered.number()
    earlier = around.get(entered.operands()[0], _UNKNOWN)
    if earlier.kind != "while":
        return None
    start = _at_start(module, around, earlier, entered.place())
    step = _step(module, earlier, entered.place())
    trips = _trips(module, around, earlier) if step else 0
    return None if None in (start, step, trips) else start + step * trips


def _step(module: dict[str, _Computation], loop: _Instruction, place: int | None) -> int | None:
    """By how much an iteration raises a number of the state; None if it changes it otherwise."""
    body = module[loop.called("body")[0]]
    root = list(body.values())[-1]
    if place is None or root.kind != "tuple":
        return None
    new = body.final(root.operands()[place])
    if new.place() == place:
        return 0
    if new.kind != "add":
        return None
    parts = [body.final(name) for name in new.operands()]
    if place not in [part.place() for part in parts]:
        return None
    return next((part.number() for part in parts if part.number() is not None), None)
