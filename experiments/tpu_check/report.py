"""Results as rows that compare recipes: plain dicts, as the JSON holds them.

A row has "ok", "recipe", "topology", "rows" and "length" of a core's micro-batch, "parameters", and
"problems", each `{"what", "op", "source"}`; then, None where not known, "memory" (bytes by use),
"memory_total" and "memory_limit" (bytes needed at once, and of a core), "largest_rows" (the most
seen to fit), "tried" (whether each number of rows fits), "cycles" of a step, "loop_cycles" of them,
"loops" (the outermost), "milliseconds" at the chip's clock, and "tokens_a_second" of a core.
"""

import json
import shlex
from collections.abc import Iterator, Sequence

from experiments import studies
from experiments.tpu_check.chips import chip_of
from experiments.tpu_check.compiler import fits, memory_total
from experiments.tpu_check.sources import Sources
from macaron_tf.errors import UserError

_MEASURED = (
    "memory", "memory_total", "memory_limit", "largest_rows", "tried", "cycles", "loop_cycles",
    "loops", "milliseconds", "tokens_a_second",
)  # fmt: skip
_COLUMNS = (
    "recipe", "topology", "passes", "batch a core", "GiB: arguments", "temporaries",
    "all / a core's", "largest batch seen to fit", "Mcycles a step", "in loops", "ms a step",
    "tokens/s a core", "time a token",
)  # fmt: skip


def problem(what: str, op: str | None = None, source: str | None = None) -> dict:
    """A reason that a step is not fit for a TPU: a sentence, the op to blame, and our line."""
    return {"what": what, "op": op, "source": source}


def row(
    recipe: str,
    topology: str,
    shape: tuple[int, int],
    parameters: int,
    problems: Sequence[dict],
    **measured,
) -> dict:
    """A row from the rows and the length of its micro-batch, and the values of `measure`."""
    head = {"ok": not problems, "recipe": recipe, "topology": topology}
    head |= {"rows": shape[0], "length": shape[1], "parameters": parameters}
    empty = {name: [] if name == "loops" else None for name in _MEASURED}
    return {**head, "problems": list(problems), **empty, **measured}


def measure(topology: str, length: int, results: dict[int, dict], sources: Sources) -> dict:
    """The problems of a recipe's compilations, and their measured values.

    Args:
        results: of `compiler.search`; the first one is the batch that is asked about.
        sources: of the traced step.
    """
    chip = chip_of(topology)
    rows, first = next(iter(results.items()))
    limit = chip.core_bytes
    tried = {number: fits(result, limit) for number, result in results.items()}
    found = {
        "problems": list(_problems(first, chip.cores, limit, sources)),
        "memory": first.get("memory"),
        "memory_total": memory_total(first),
        "memory_limit": limit,
        "largest_rows": max((number for number, fit in tried.items() if fit), default=None),
        "tried": tried,
    }
    if cycles := first.get("cycles"):
        seconds = cycles["cycles"] / (chip.clock_ghz * 1e9)
        found |= {name: cycles[name] for name in ("cycles", "loop_cycles", "loops")}
        found |= {"milliseconds": seconds * 1e3, "tokens_a_second": rows * length / seconds}
    return found


def _problems(result: dict, cores: int, limit: int, sources: Sources) -> Iterator[dict]:
    for name in result.get("dynamic", ()):
        yield problem("a shape depends on values", name, sources.of(name))
    if "error" in result:
        for name in result.get("error_ops") or [None]:
            yield problem(result["error"], name, sources.of(name) if name else None)
    elif not fits(result, limit):
        yield problem(f"{_gib(memory_total(result))} GiB needed, {_gib(limit)} GiB there are")
    if result.get("cores_a_chip", cores) != cores:
        yield problem(f"libtpu sees {result['cores_a_chip']} cores a chip, not {cores}")
    for loop in result.get("cycles", {}).get("loops", ()):
        if loop["trips"] is None:
            source = sources.of(loop["name"])
            yield problem("a loop of unknown length, counted once", loop["name"], source)


def table(rows: Sequence[dict]) -> str:
    """A Markdown table. The last column is relative to the topology's first recipe."""
    lines = []
    for each in rows:
        first = next((r for r in rows if r["topology"] == each["topology"] and r["ok"]), None)
        lines.append(_cells(each, first))
    return "\n".join(studies.table(_COLUMNS, lines)) + "\n"


def _cells(row: dict, first: dict | None) -> list[str]:
    cells = [row["recipe"], row["topology"], "yes" if row["ok"] else "NO"]
    memory, speed, largest = ["-"] * 3, ["-"] * 5, "-"
    if row["memory"]:
        memory[:2] = _gib(row["memory"]["arguments"]), _gib(row["memory"]["temporaries"])
    if row["memory_total"]:
        memory[2] = f"{_gib(row['memory_total'])} / {_gib(row['memory_limit'])}"
    if row["largest_rows"]:
        refused = [int(number) for number, fit in row["tried"].items() if not fit]
        largest = f"{row['largest_rows']}" + (f", not {min(refused)}" if refused else "")
    if row["cycles"]:
        speed = [
            f"{row['cycles'] / 1e6:.1f}",
            f"{row['loop_cycles'] / row['cycles']:.0%}",
            f"{row['milliseconds']:.1f}",
            f"{row['tokens_a_second']:,.0f}",
            f"{first['tokens_a_second'] / row['tokens_a_second']:.2f}" if first else "-",
        ]
    return [*cells, f"{row['rows']} x {row['length']}", *memory, largest, *speed]


def problems(rows: Sequence[dict]) -> str:
    """A line for each problem, with its op, and below it the line of ours that it comes from."""
    lines = []
    for each in rows:
        for one in each["problems"]:
            op = f": {one['op']}" if one["op"] else ""
            source = f"\n    {one['source']}" if one["source"] else ""
            lines.append(f"{each['recipe']} on {each['topology']}: {one['what']}{op}{source}\n")
    return "".join(lines)


def merged(rows: Sequence[dict], text: str, where: str) -> list[dict]:
    """The rows of a JSON that `as_json` wrote, with these in place of those about the same.

    Args:
        where: the file's name, for the error.

    Raises:
        UserError: the text holds no rows.
    """
    try:
        both = [*json.loads(text)["rows"], *rows]
        return list({(row["recipe"], row["topology"], row["rows"]): row for row in both}.values())
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{where} holds no results of tpu_check: {error}") from error


def as_json(rows: Sequence[dict], facts: dict) -> str:
    """The rows, the command that finds them, and the versions that they depend on.

    Args:
        facts: `options` of the command beside recipes and topologies; `versions` by package.
    """
    record = {"command": _command(rows, facts), "versions": facts["versions"], "rows": list(rows)}
    return json.dumps(record, indent=1) + "\n"


def as_markdown(rows: Sequence[dict], facts: dict) -> str:
    """The table and what its columns mean."""
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


def _command(rows: Sequence[dict], facts: dict) -> str:
    """The command that finds all of these rows."""
    recipes, topologies = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("recipe", "topology")
    )
    words = [*recipes, *studies.flags("--topology", topologies), *facts["options"]]
    return shlex.join(["python", "-m", "experiments.tpu_check", *words])


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"
