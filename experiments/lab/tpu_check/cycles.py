"""Reads the TPU compiler's cycle estimates and collectives from optimized HLO text.

The compiler writes `estimated_cycles` next to each instruction. The estimate of a fusion includes
the instructions in the fusion. The text lists the body of a loop once. This module multiplies the
cycles of the body by the number of iterations. For a conditional, the module counts the most
expensive branch. The optimizer step is in a branch of a conditional, because an update whose
gradient is NaN or infinite is skipped.
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
_NO_ESTIMATE = 2**60  # the compiler writes the largest integer for "unknown"


class Loop(NamedTuple):
    """A while loop.

    Attributes:
        name: name of the op that makes the loop, or of the HLO instruction if the op is unknown.
        trips: number of iterations; `None` means an unknown number, which counts as 1.
        cycles: cycles in one iteration, including inner loops.
    """

    name: str
    trips: int | None
    cycles: int


class Estimate(NamedTuple):
    """Estimated cycles in one execution of a program.

    Attributes:
        cycles: all cycles; the cycles of a loop count once per iteration.
        loop_cycles: cycles in loops, which `cycles` includes.
        by_opcode: dict mapping an HLO opcode to its cycles outside loops, in descending order of
            cycles.
        loops: the outermost loops.
    """

    cycles: int
    loop_cycles: int
    by_opcode: dict[str, int]
    loops: list[Loop]

    def as_dict(self) -> dict:
        """Returns the estimate as a dict that can be written as JSON."""
        return {**self._asdict(), "loops": [loop._asdict() for loop in self.loops]}


class _Instruction(NamedTuple):
    name: str
    opcode: str
    text: str  # from the operands to the end of the line

    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.text.partition(")")[0])

    def called(self, *keys: str) -> list[str]:
        """Returns the names of the computations that the instruction calls.

        Args:
            keys: attributes that contain names of computations, such as `body`.
        """
        names = []
        for key in keys:
            for braced, plain in re.findall(rf"\b{key}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.text):
                names += re.findall(r"[\w.\-]+", braced) if braced else [plain]
        return names

    def constant(self) -> int | None:
        """Returns the value of an integer constant, or `None` for other instructions."""
        argument = self.text.partition(")")[0]
        match = self.opcode == "constant" and re.fullmatch(r"-?\d+", argument)
        return int(argument) if match else None

    def tuple_index(self) -> int | None:
        """Returns the tuple index that a `get-tuple-element` reads; `None` for other opcodes."""
        if self.opcode != "get-tuple-element":
            return None
        return int(re.search(r"\bindex=(\d+)", self.text.partition(")")[2])[1])


_UNKNOWN = _Instruction("", "", "")


class _Computation(dict[str, _Instruction]):
    """HLO computation, as a dict mapping name to instruction.

    The last instruction in the dict is the root of the computation.
    """

    def final(self, name: str) -> _Instruction:
        """Returns the instruction `name` or, if this is a copy or a bitcast, the copied value.

        If there is no such instruction, the result is `_UNKNOWN`.
        """
        instruction = self.get(name, _UNKNOWN)
        while instruction.opcode in ("copy", "bitcast"):
            instruction = self.get(instruction.operands()[0], _UNKNOWN)
        return instruction


def collectives(text: str) -> dict[str, int]:
    """Computes the number of bytes that a core receives in collective operations.

    A collective in a loop counts once.

    Args:
        text: text of an optimized HLO module.

    Returns:
        Dict mapping the type of a collective, such as "all-reduce", to its number of bytes, in
        descending order of bytes.
    """
    sizes_by_opcode = collections.Counter()
    for shapes, opcode, start in _COLLECTIVE.findall(text):
        sizes = [
            math.prod(map(int, filter(None, shape.split(",")))) * -(-int(bits or 8) // 8)
            for bits, shape in _ARRAY.findall(shapes)
        ]
        # The result of an all-gather-start or collective-permute-start includes operand and flags.
        sizes_by_opcode[opcode] += max(sizes) if start and opcode != "all-reduce" else sum(sizes)
    return dict(sizes_by_opcode.most_common())


def estimate(text: str) -> Estimate:
    """Sums the cycle estimates in the text of an optimized HLO module.

    Raises:
        ValueError: the text is not an HLO module, or has no cycle estimates.
    """
    module: dict[str, _Computation] = {}
    current, entry = None, None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = module.setdefault(header[2], _Computation())
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current[match[1]] = _Instruction(*match.groups())
    if entry is None or not _ESTIMATE.search(text):
        raise ValueError("the text is not an HLO module with cycle estimates")
    return _sum(module, entry)


def _sum(module: dict[str, _Computation], name: str) -> Estimate:
    by_opcode, loops, loop_cycles = collections.Counter(), [], 0
    for instruction in module.get(name, {}).values():
        callees = []
        match instruction.opcode:
            case "while":
                parts = instruction.called("body", "condition")
                cycles = sum(_sum(module, callee).cycles for callee in parts)
                trips = _trips(module, module[name], instruction)
                label = _NAME.search(instruction.text)
                loops.append(Loop(label[1] if label else instruction.name, trips, cycles))
                loop_cycles += cycles * (1 if trips is None else trips)
                continue
            case "conditional":
                keys = ("branch_computations", "true_computation", "false_computation")
                branches = [_sum(module, branch) for branch in instruction.called(*keys)]
                callees = [max(branches, key=lambda branch: branch.cycles)]
            case "call" | "async-start":
                callees = [
                    _sum(module, called) for called in instruction.called("to_apply", "calls")
                ]
        for callee in callees:
            by_opcode.update(callee.by_opcode)
            loops += callee.loops
            loop_cycles += callee.loop_cycles
        note = _ESTIMATE.search(instruction.text)
        if note and not callees and int(note[1]) < _NO_ESTIMATE:
            by_opcode[instruction.opcode] += int(note[1])
    total = sum(by_opcode.values()) + loop_cycles
    return Estimate(total, loop_cycles, dict(by_opcode.most_common()), loops)


def _trips(module: dict[str, _Computation], parent: _Computation, loop: _Instruction) -> int | None:
    """Returns the iteration count of a loop, or `None` if it is unknown.

    The count comes from `known_trip_count` or, if the text has no such note, from the loop's
    condition `counter < bound`. If the condition has several comparisons, the result is the
    smallest count.

    Args:
        module: dict mapping a name to a computation.
        parent: computation that contains the loop.
        loop: the `while` instruction.
    """
    if match := _TRIPS.search(loop.text):
        return int(match[1])
    condition = module[loop.called("condition")[0]]
    counts = []
    for compare in condition.values():
        direction = re.search(r"direction=(LT|LE|GT|GE)", compare.text)
        if compare.opcode != "compare" or not direction:
            continue
        counter, bound = map(condition.final, compare.operands())
        if direction[1] in ("GT", "GE"):  # bound > counter
            counter, bound = bound, counter
        limit = bound.constant()
        if limit is None:
            limit = _at_start(module, parent, loop, bound.tuple_index())
        start = _at_start(module, parent, loop, counter.tuple_index())
        step = _step(module, loop, counter.tuple_index())
        if None not in (limit, step, start) and step >= 1:
            distance = limit - start + (direction[1] in ("LE", "GE"))
            counts.append(max(0, -(-distance // step)))
    return min(counts, default=None)


def _at_start(
    module: dict[str, _Computation], parent: _Computation, loop: _Instruction, index: int | None
) -> int | None:
    """Returns an integer in the initial state of a loop, or `None` if the integer is unknown.

    The state may be the final state of an earlier loop. In a backward pass, for example, the bound
    of a loop is the final counter of the forward loop.

    Args:
        module: dict mapping a name to a computation.
        parent: computation that contains the loop.
        loop: the `while` instruction.
        index: index of the integer in the state; if it is `None`, the result is `None`.
    """
    state = parent.final(loop.operands()[0])
    if index is None or state.opcode != "tuple":
        return None
    initial = parent.final(state.operands()[index])
    if initial.tuple_index() is None:
        return initial.constant()
    earlier = parent.get(initial.operands()[0], _UNKNOWN)
    if earlier.opcode != "while":
        return None
    start = _at_start(module, parent, earlier, initial.tuple_index())
    step = _step(module, earlier, initial.tuple_index())
    trips = _trips(module, parent, earlier) if step else 0
    return None if None in (start, step, trips) else start + step * trips


def _step(module: dict[str, _Computation], loop: _Instruction, index: int | None) -> int | None:
    """Returns the constant that an iteration adds to the state's integer at index `index`.

    The result is 0 if the integer does not change. `None` means that it changes in another way, or
    that `index` is `None`.
    """
    body = module[loop.called("body")[0]]
    root = list(body.values())[-1]
    if index is None or root.opcode != "tuple":
        return None
    new = body.final(root.operands()[index])
    if new.tuple_index() == index:
        return 0
    if new.opcode != "add":
        return None
    parts = [body.final(name) for name in new.operands()]
    if index not in [part.tuple_index() for part in parts]:
        return None
    return next((part.constant() for part in parts if part.constant() is not None), None)
