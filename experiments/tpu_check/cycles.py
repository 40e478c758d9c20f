"""What the TPU compiler thinks its own program takes, read from the optimized HLO text.

The compiler notes `estimated_cycles` at each instruction. A loop's body is listed once: here it
counts as often as it runs. Of a condition's branches the dearest counts: the optimizer's step
stands in one, for an update with a NaN gradient is skipped. What is inside of a fusion is in the
fusion's own figure.
"""

import collections
import dataclasses
import re

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][a-z0-9\-]*)\((.*)$")
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)')
_NAME = re.compile(r'op_name="([^"]*)"')
_NO_ESTIMATE = 2**60  # the compiler's figure for "unknown" is the greatest integer


@dataclasses.dataclass(frozen=True)
class Loop:
    """A while loop.

    Attributes:
        name: of the TensorFlow op that it comes from.
        trips: how often it runs; None = the text does not say, and it was counted once.
        cycles: of one trip, loops within included.
    """

    name: str
    trips: int | None
    cycles: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The cycles of a program.

    Attributes:
        cycles: of one run, loops times their trips.
        loop_cycles: the loops' part of it.
        by_kind: cycles outside of loops by kind of instruction, dearest first.
        loops: the outermost ones.
    """

    cycles: int
    loop_cycles: int
    by_kind: dict[str, int]
    loops: tuple[Loop, ...]


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    kind: str
    rest: str  # from the operands on

    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.\-]+)", self.rest.partition(")")[0])

    def called(self, *keys: str) -> list[str]:
        """Names of the computations under keys such as `body=`."""
        found = []
        for key in keys:
            for braced, plain in re.findall(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.rest):
                found += re.findall(r"[\w.\-]+", braced) if braced else [plain]
        return found


def estimate(text: str) -> Estimate:
    """Sums the estimates of an optimized HLO module.

    Args:
        text: the module's.

    Raises:
        ValueError: it has no entry computation, or no estimate at all.
    """
    computations, entry = _parse(text)
    if entry is None or not _ESTIMATE.search(text):
        raise ValueError("no HLO module with cycle estimates")
    return _sum(computations, entry)


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str | None]:
    """Each computation's instructions by name; the last one is the root. And the entry's name."""
    computations: dict[str, dict[str, _Instruction]] = {}
    current, entry = None, None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current[found[1]] = _Instruction(*found.groups())
    return computations, entry


def _sum(computations: dict, name: str) -> Estimate:
    by_kind, loops, loop_cycles = collections.Counter(), [], 0
    for instruction in computations.get(name, {}).values():
        inner = []
        if instruction.kind == "while":
            body, condition = (
                _sum(computations, instruction.called(key)[0]).cycles
                for key in ("body", "condition")
            )
            trips = _trips(computations, computations[name], instruction)
            label = _NAME.search(instruction.rest)
            loop = Loop(label[1] if label else instruction.name, trips, body + condition)
            loops.append(loop)
            loop_cycles += loop.cycles * (1 if trips is None else trips)
            continue
        if instruction.kind == "conditional":
            branches = instruction.called(
                "branch_computations", "true_computation", "false_computation"
            )
            inner = [max((_sum(computations, b) for b in branches), key=lambda e: e.cycles)]
        elif instruction.kind in ("call", "async-start"):
            inner = [_sum(computations, c) for c in instruction.called("to_apply", "calls")]
        for part in inner:
            by_kind.update(part.by_kind)
            loops += part.loops
            loop_cycles += part.loop_cycles
        noted = _ESTIMATE.search(instruction.rest)
        if noted and not inner and int(noted[1]) < _NO_ESTIMATE:
            by_kind[instruction.kind] += int(noted[1])
    total = sum(by_kind.values()) + loop_cycles
    return Estimate(total, loop_cycles, dict(by_kind.most_common()), tuple(loops))


def _trips(computations: dict, around: dict, loop: _Instruction) -> int | None:
    """How often a loop runs: as noted, or by its condition `counter < bound`.

    A condition of several such comparisons ends with the first that fails.
    """
    if noted := _TRIPS.search(loop.rest):
        return int(noted[1])
    condition = computations[loop.called("condition")[0]]
    found = []
    for compare in condition.values():
        direction = re.search(r"direction=(LT|LE|GT|GE)", compare.rest)
        if compare.kind != "compare" or not direction:
            continue
        counter, bound = (_final(condition, name) for name in compare.operands())
        if direction[1] in ("GT", "GE"):  # bound > counter
            counter, bound = bound, counter
        place = _place(counter)
        limit = _constant(bound)
        if limit is None and (of_bound := _place(bound)) is not None:
            limit = _at_start(computations, around, loop, of_bound)
        step = _step(computations, loop, place)
        start = None if place is None else _at_start(computations, around, loop, place)
        if None in (limit, step, start) or step < 1:
            continue
        distance = limit - start + (direction[1] in ("LE", "GE"))
        found.append(max(0, -(-distance // step)))
    return min(found, default=None)


def _at_start(computations: dict, around: dict, loop: _Instruction, place: int) -> int | None:
    """A number of the state that a loop is entered with.

    A gradient's loop runs as often as the forward one counted: that one's counter at its end.
    """
    state = _final(around, loop.operands()[0])
    if state is None or state.kind != "tuple":
        return None
    entered = _final(around, state.operands()[place])
    if (known := _constant(entered)) is not None or entered is None:
        return known
    earlier = around.get(entered.operands()[0]) if _place(entered) is not None else None
    if earlier is None or earlier.kind != "while":
        return None
    start = _at_start(computations, around, earlier, _place(entered))
    step = _step(computations, earlier, _place(entered))
    trips = _trips(computations, around, earlier) if step else 0
    return None if None in (start, step, trips) else start + step * trips


def _step(computations: dict, loop: _Instruction, place: int | None) -> int | None:
    """By how much a trip raises a number of the state; None where it does something else."""
    body = computations[loop.called("body")[0]]
    root = list(body.values())[-1]
    if place is None or root.kind != "tuple":
        return None
    new = _final(body, root.operands()[place])
    if _place(new) == place:
        return 0
    if new is None or new.kind != "add":
        return None
    parts = [_final(body, name) for name in new.operands()]
    steps = [_constant(part) for part in parts]
    if place not in [_place(part) for part in parts]:
        return None
    return next((step for step in steps if step is not None), None)


def _final(computation: dict, name: str) -> _Instruction | None:
    """The instruction of that name, past copies of it."""
    instruction = computation.get(name)
    while instruction is not None and instruction.kind in ("copy", "bitcast"):
        instruction = computation.get(instruction.operands()[0])
    return instruction


def _place(instruction: _Instruction | None) -> int | None:
    """The place in a tuple that an instruction reads."""
    if instruction is None or instruction.kind != "get-tuple-element":
        return None
    return int(re.search(r"\bindex=(\d+)", instruction.rest.partition(")")[2])[1])


def _constant(instruction: _Instruction | None) -> int | None:
    if instruction is None or instruction.kind != "constant":
        return None
    text = instruction.rest.partition(")")[0]
    return int(text) if re.fullmatch(r"-?\d+", text) else None
