"""What was found, as rows that compare recipes."""

import dataclasses
import json
import linecache
import pathlib
import re
import shlex
import sysconfig
import traceback
from collections.abc import Sequence

from experiments.tpu_check.chips import chip_of
from experiments.tpu_check.compiler import fits, memory_total
from macaron_tf.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIBRARIES = tuple(
    str(pathlib.Path(sysconfig.get_paths()[name])) for name in ("stdlib", "purelib", "platlib")
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a step is not fit for a TPU.

    Attributes:
        what: a sentence.
        op: name of the op, if one is to blame.
        source: `file:line in function: code` in our Python, if it could be found.
    """

    what: str
    op: str | None = None
    source: str | None = None


class Sources:
    """Finds a graph's ops by name, those of its loops, conditions and inner functions included.

    Args:
        graph: a `tf.Graph`, such as a concrete function's.
    """

    def __init__(self, graph):
        self._ops = {}
        self._add(graph, set())

    def of(self, name: str) -> str | None:
        """`file:line in function: code` of the op with that name, or None.

        Args:
            name: as TensorFlow and the compiler write it: outer functions may stand before it.
        """
        parts = name.split("/")
        for first in range(len(parts)):
            if op := self._ops.get("/".join(parts[first:])):
                frames = op.traceback or []
                return innermost((f.filename, f.lineno, f.name) for f in frames)
        return None

    def _add(self, graph, seen: set) -> None:
        if id(graph) in seen:
            return
        seen.add(id(graph))
        for op in graph.get_operations():
            self._ops.setdefault(op.name, op)
        for function in graph._functions.values():
            if inner := getattr(function, "graph", None):
                self._add(inner, seen)


def innermost(frames) -> str | None:
    """The last frame that lies neither in a library nor in Python's own: file, line and code.

    Args:
        frames: (file, line, function) from the outermost on.
    """
    ours = [frame for frame in frames if _is_ours(frame[0])]
    if not ours:
        return None
    file, line, function = ours[-1]
    path = pathlib.Path(file)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line} in {function}: {linecache.getline(file, line).strip()}"


def of_exception(error: BaseException) -> str | None:
    """The line of ours that an exception came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    return innermost((frame.filename, frame.lineno, frame.name) for frame in frames)


def refused(message: str) -> list[tuple[str, str | None]]:
    """What TensorFlow's bridge to XLA cannot take: a sentence and the name of the op, each.

    Args:
        message: of the exception.
    """
    lacking = re.findall(r"(\w+) \(No registered '\w+' OpKernel[^{]*\{\{node ([^}]+)\}\}", message)
    if lacking:
        return [(f"{kind} cannot be compiled by XLA", op) for kind, op in dict.fromkeys(lacking)]
    said = message.removeprefix("Failed getting HLO text: '").strip().partition("\n")[0]
    op = re.search(r"\{\{node ([^}]+)\}\}", message)
    return [(said, op[1] if op else None)]


def _is_ours(file: str) -> bool:
    if "site-packages" in file or file.startswith("<"):
        return False
    return not file.startswith(_LIBRARIES)


@dataclasses.dataclass(frozen=True)
class Row:
    """One recipe on one topology; None where there is nothing to say.

    Attributes:
        recipe, topology: their names.
        rows, length: of a core's micro-batch.
        parameters: numbers of the model.
        problems: why it is not fit for the chip; none = it passes.
        memory: bytes by what they are for.
        memory_total, memory_limit: bytes needed at once, and of a core.
        largest_rows: the greatest number of rows that was seen to fit.
        tried: whether each number of rows tried fits.
        cycles: of a step; `loop_cycles` of them in loops.
        loops: the outermost loops.
        milliseconds: of a step at the chip's clock.
        tokens_a_second: of a core.
    """

    recipe: str
    topology: str
    rows: int
    length: int
    parameters: int
    problems: tuple[Problem, ...]
    memory: dict[str, int] | None = None
    memory_total: int | None = None
    memory_limit: int | None = None
    largest_rows: int | None = None
    tried: dict[int, bool] | None = None
    cycles: int | None = None
    loop_cycles: int | None = None
    loops: tuple[dict, ...] = ()
    milliseconds: float | None = None
    tokens_a_second: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it passes."""
        return not self.problems

    def as_dict(self) -> dict:
        """For JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


def row(
    recipe: str,
    topology: str,
    length: int,
    parameters: int,
    results: dict[int, dict],
    sources: Sources,
) -> Row:
    """What a recipe's compilations say.

    Args:
        recipe, topology, length, parameters: as in `Row`.
        results: `fitting.search`'s; the first one is the batch that is asked about.
        sources: of the traced step.
    """
    chip = chip_of(topology)
    rows, first = next(iter(results.items()))
    limit = chip.core_bytes
    tried = {number: fits(result, limit) for number, result in results.items()}
    cycles, speed = first.get("cycles"), {}
    if cycles:
        seconds = cycles["cycles"] / (chip.clock_ghz * 1e9)
        speed = {
            "cycles": cycles["cycles"],
            "loop_cycles": cycles["loop_cycles"],
            "loops": tuple(cycles["loops"]),
            "milliseconds": seconds * 1e3,
            "tokens_a_second": rows * length / seconds,
        }
    return Row(
        recipe,
        topology,
        rows,
        length,
        parameters,
        tuple(_problems(first, chip.cores, limit, sources)),
        memory=first.get("memory"),
        memory_total=memory_total(first),
        memory_limit=limit,
        largest_rows=max((number for number, fit in tried.items() if fit), default=None),
        tried=tried,
        **speed,
    )


def _problems(result: dict, cores: int, limit: int, sources: Sources):
    for name in result.get("dynamic", ()):
        yield Problem("a shape depends on values", name, sources.of(name))
    if "error" in result:
        names = result.get("error_ops") or [None]
        for name in names:
            yield Problem(result["error"], name, sources.of(name) if name else None)
    elif not fits(result, limit):
        yield Problem(f"{_gib(memory_total(result))} GiB needed, {_gib(limit)} GiB there are")
    if result.get("cores_a_chip", cores) != cores:
        yield Problem(f"libtpu sees {result['cores_a_chip']} cores a chip, not {cores}")
    for loop in result.get("cycles", {}).get("loops", ()):
        if loop["trips"] is None:
            yield Problem(
                "a loop of unknown length, counted once", loop["name"], sources.of(loop["name"])
            )


def table(rows: Sequence[Row]) -> str:
    """A Markdown table. The last column is relative to the topology's first recipe."""
    columns = (
        "recipe", "topology", "passes", "batch a core", "GiB: arguments", "temporaries",
        "all / a core's", "largest batch seen to fit", "Mcycles a step", "in loops", "ms a step",
        "tokens/s a core", "time a token",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for each in rows:
        first = next((r for r in rows if r.topology == each.topology and r.ok), None)
        lines.append(f"| {' | '.join(_cells(each, first))} |")
    return "\n".join(lines) + "\n"


def _cells(row: Row, first: Row | None) -> list[str]:
    cells = [row.recipe, row.topology, "yes" if row.ok else "NO", f"{row.rows} x {row.length}"]
    memory, speed, largest = ["-"] * 3, ["-"] * 5, "-"
    if row.memory:
        memory[:2] = _gib(row.memory["arguments"]), _gib(row.memory["temporaries"])
    if row.memory_total:
        memory[2] = f"{_gib(row.memory_total)} / {_gib(row.memory_limit)}"
    if row.largest_rows:
        refused = [number for number, fit in row.tried.items() if not fit]
        largest = f"{row.largest_rows}" + (f", not {min(refused)}" if refused else "")
    if row.cycles:
        speed = [
            f"{row.cycles / 1e6:.1f}",
            f"{row.loop_cycles / row.cycles:.0%}",
            f"{row.milliseconds:.1f}",
            f"{row.tokens_a_second:,.0f}",
            f"{first.tokens_a_second / row.tokens_a_second:.2f}" if first else "-",
        ]
    return [*cells, *memory, largest, *speed]


def problems(rows: Sequence[Row]) -> str:
    """A line for each problem: what, which op, and below it where that comes from."""
    lines = []
    for each in rows:
        for problem in each.problems:
            op = f": {problem.op}" if problem.op else ""
            source = f"\n    {problem.source}" if problem.source else ""
            lines.append(f"{each.recipe} on {each.topology}: {problem.what}{op}{source}\n")
    return "".join(lines)


def merged(rows: Sequence[Row], text: str, where: str) -> list[Row]:
    """The rows of a JSON that `as_json` wrote, with these in place of those about the same.

    Args:
        rows: new ones.
        text: the JSON.
        where: its file's name, for the error.

    Raises:
        UserError: it is none.
    """
    try:
        found = [_row_of(each) for each in json.loads(text)["rows"]]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{where} holds no results of tpu_check: {error}") from error
    new = {(row.recipe, row.topology, row.rows): row for row in rows}
    kept = {(row.recipe, row.topology, row.rows): row for row in found}
    return list((kept | new).values())


def as_json(rows: Sequence[Row], facts: dict) -> str:
    """The rows with what they are worth nothing without.

    Args:
        rows: all of them.
        facts: `options` of the command beside recipes and topologies; `versions` by package.
    """
    found = {"command": _command(rows, facts), "versions": facts["versions"]}
    return json.dumps({**found, "rows": [row.as_dict() for row in rows]}, indent=1) + "\n"


def as_markdown(rows: Sequence[Row], facts: dict) -> str:
    """The table with what it means."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"""# Each recipe's train step, compiled for a TPU without one

`{_command(rows, facts)}`; {versions}.

One core's share of an update: forward, backward, the gradient's norm, the optimizer's step. Memory
is the compiler's own analysis. Cycles are the compiler's estimates, each loop counted as often as
it runs, turned into time at the clock that makes the chip's peak; nothing was run on a TPU. Random
bits are the chip's own, as TensorFlow draws them there.
Not in them: the sum of gradients over the cores, and waiting for data. Times compare recipes.

{table(rows)}
{problems(rows)}"""


def _command(rows: Sequence[Row], facts: dict) -> str:
    """What finds all of these rows."""
    recipes = dict.fromkeys(row.recipe for row in rows)
    topologies = dict.fromkeys(row.topology for row in rows)
    words = [*recipes, *(word for name in topologies for word in ("--topology", name))]
    return shlex.join(["python", "-m", "experiments.tpu_check", *words, *facts["options"]])


def _row_of(values: dict) -> Row:
    values = {name: value for name, value in values.items() if name != "ok"}
    values["problems"] = tuple(Problem(**each) for each in values["problems"])
    values["loops"] = tuple(values["loops"])
    if values["tried"]:
        values["tried"] = {int(number): fit for number, fit in values["tried"].items()}
    return Row(**values)


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"
