"""Checks recipes and makes rows that compare them, as the JSON has them.

A row always has "ok", "recipe", "topology", "rows" and "length" of a core's micro-batch,
"parameters", and "problems", each `{"what", "op", "source"}`. These fields are None if unknown:

- "memory" (bytes by use), "memory_total" (bytes needed at once), "memory_limit" (bytes of a core);
- "largest_rows" (the most rows seen to fit), "tried" (whether each number of rows fits);
- "cycles" of a step, "loop_cycles" (the part of loops), "loops" (the outermost), "milliseconds" at
  the chip's clock, "tokens_a_second" of a core;
- "compilation" and "collectives" of the first compilation (see `compiler.compile_step`).

"settings", "mesh" and "compilations" are those of the flags, "commit" is the one that was checked
out, and "versions" are those of the packages.
"""

import argparse
import functools
import gc
import importlib.metadata
import json
import math
import pathlib
import shlex
import sys
from collections.abc import Iterator, Sequence

from experiments import studies
from experiments.lab.tpu_check import compiler, slices
from experiments.lab.tpu_check.chips import chip_of, listing
from experiments.lab.tpu_check.step import Sources, Step, Traced, problem, step_of
from macaron_tf.distribution.mesh import parse_mesh, use_mesh
from macaron_tf.errors import UserError, parse_json
from macaron_tf.io.paths import clear_errors, write_aside

_PACKAGES = ("tensorflow", "keras", "jax", "libtpu")
_COLUMNS = (
    "recipe", "topology", "passes", "batch a core", "GiB: arguments", "temporaries",
    "all / a core's", "collectives", "largest batch seen to fit", "Mcycles a step",
    "in loops", "ms a step", "tokens/s a core", "time a token", "compiled in min", "CPU min", "GiB",
    "commit",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Checks the recipes and returns the exit status."""
    if options.list:
        print(listing())
        return 0
    if options.slices:
        slices.run(options.markdown)
        return 0
    if not options.recipe:
        raise UserError("name a recipe, such as bert_base; `pretrain recipes` lists them")
    options.topology = options.topology or ["v4:2x2x1"]
    for topology in options.topology:
        chip_of(topology)
    compiler.check_installed()
    if options.engine == "jax":
        import jax

        options.mesh = options.mesh or "data=1"
        sizes = parse_mesh(options.mesh)
        # JAX divides the CPU into as many devices as the mesh has.
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", math.prod(sizes.values()))
        use_mesh(sizes)
    # Wrong settings must be reported before compilations of minutes.
    steps = {name: step_of(name, options.set) for name in options.recipe}
    for one in steps.values():
        one.recipe.model_config()
        one.shape(options.batch)
    if options.hlo:
        with clear_errors(f"--hlo {options.hlo} cannot be written", "choose another place"):
            pathlib.Path(options.hlo).mkdir(parents=True, exist_ok=True)
    batch = [] if options.batch is None else ["--batch", str(options.batch)]
    given = studies.flags("--set", *options.set)
    on_mesh = ["--engine", "jax", "--mesh", options.mesh] if options.mesh else []
    facts = {
        "options": [*batch, "--compilations", str(options.compilations), *on_mesh, *given],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }
    same = {"settings": options.set, "commit": studies.commit(), "mesh": options.mesh}
    same |= {"compilations": options.compilations, "versions": facts["versions"]}
    resumes = options.resume and not same["commit"].endswith("-dirty")
    file = pathlib.Path(options.json) if options.json else None
    found = []

    def write() -> None:
        rows = found
        if file:
            if file.is_file():
                rows = merged(found, file.read_text(encoding="utf-8"), str(file))
            write_aside(file, as_json(rows, facts).encode())
        if options.markdown:
            write_aside(options.markdown, as_markdown(rows, facts).encode())

    for name, one in steps.items():
        topologies = options.topology
        if resumes and file and file.is_file():
            have = merged([], file.read_text(encoding="utf-8"), str(file))
            new = same | {"recipe": name, "rows": one.shape(options.batch).rows}
            kept = [row for row in have if all(row.get(key) == new[key] for key in new)]
            found += [row for row in kept if row["topology"] in topologies]
            topologies = [each for each in topologies if each not in {r["topology"] for r in kept}]
        for row in _check(name, one, options, topologies) if topologies else ():
            found.append(row | same)
            write()
        gc.collect()  # a model and its graphs refer to each other and hold gigabytes
    write()  # in case every row was kept
    print(table(found))
    print(problems(found), end="")
    return 0 if all(row["ok"] for row in found) else 1


def _check(
    name: str, step: Step, options: argparse.Namespace, topologies: Sequence[str]
) -> Iterator[dict]:
    """Yields a recipe's rows, one for each topology. Each step is traced once for all of them."""
    _say(f"{name}: building the model")
    model = step.build()
    shape = step.shape(options.batch)
    mesh = options.mesh and parse_mesh(options.mesh)

    @functools.cache
    def traced(rows: int) -> Traced:
        _say(f"{name}: tracing the step of {rows} x {shape.length}")
        return step.trace(model, shape._replace(rows=rows))

    def compiled(topology: str, rows: int) -> dict:
        hlo, text = traced(rows).hlo, None
        _say(f"{name}: compiling the step of {rows} x {shape.length} for {topology}")
        if options.hlo:
            text = pathlib.Path(options.hlo) / f"{name}-{topology.replace(':', '-')}-{rows}.hlo"
        return compiler.compile_step(hlo, topology, text, mesh and math.prod(mesh.values()))

    first = traced(shape.rows)
    for topology in topologies:
        results = {}
        if not first.problems:
            compile_ = functools.partial(compiled, topology)
            limit = chip_of(topology).core_bytes
            results = compiler.search(compile_, shape.rows, limit, options.compilations)
        parameters = model.network.count_params()
        yield row(name, topology, shape, parameters, first, results, mesh["model"] if mesh else 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def row(
    recipe: str,
    topology: str,
    shape: tuple[int, int],
    parameters: int,
    traced: Traced,
    results: dict[int, dict],
    sharing: int = 1,
) -> dict:
    """Makes a row of results; see the module.

    Args:
        shape: rows and length of a micro-batch.
        results: results of `compiler.search`; the first one is of the batch in question.
        sharing: number of cores that share a model and its micro-batch.
    """
    chip, first = chip_of(topology), next(iter(results.values()), {})
    tried = {number: compiler.fits(result, chip.core_bytes) for number, result in results.items()}
    problems, cycles = list(traced.problems), first.get("cycles", {})
    if first:
        problems += _problems(first, chip.cores, chip.core_bytes, traced.sources)
    seconds = cycles["cycles"] / (chip.clock_ghz * 1e9) if cycles else None
    return {
        "ok": not problems,
        "recipe": recipe,
        "topology": topology,
        "rows": shape[0],
        "length": shape[1],
        "parameters": parameters,
        "problems": problems,
        "memory": first.get("memory"),
        "memory_total": compiler.memory_total(first),
        "memory_limit": chip.core_bytes if first else None,
        "largest_rows": max((number for number, fit in tried.items() if fit), default=None),
        "tried": tried or None,
        "cycles": cycles.get("cycles"),
        "loop_cycles": cycles.get("loop_cycles"),
        "loops": cycles.get("loops", []),
        "milliseconds": seconds and seconds * 1e3,
        "tokens_a_second": seconds and shape[0] * shape[1] / sharing / seconds,
        "collectives": first.get("collectives"),
        "compilation": first.get("compilation"),
    }


def _problems(result: dict, cores: int, limit: int, sources: Sources) -> Iterator[dict]:
    for name in result.get("dynamic", ()):
        yield problem("a shape depends on values", name, sources.of(name))
    if "error" in result:
        for name in result.get("error_ops") or [None]:
            yield problem(result["error"], name, sources.of(name) if name else None)
    elif not compiler.fits(result, limit):
        yield problem(
            f"{_gib(compiler.memory_total(result))} GiB needed, {_gib(limit)} GiB available"
        )
    if result.get("cores_a_chip", cores) != cores:
        yield problem(f"libtpu sees {result['cores_a_chip']} cores a chip, not {cores}")
    for loop in result.get("cycles", {}).get("loops", ()):
        if loop["trips"] is None:
            source = sources.of(loop["name"])
            yield problem("a loop of unknown length, counted once", loop["name"], source)


def table(rows: Sequence[dict]) -> str:
    """A Markdown table; "time a token" is relative to the first recipe on the same topology."""
    lines = []
    for each in rows:
        first = next((r for r in rows if r["topology"] == each["topology"] and r["ok"]), None)
        lines.append(_cells(each, first))
    return "\n".join(studies.table(_COLUMNS, lines)) + "\n"


def _cells(row: dict, first: dict | None) -> list[str]:
    mesh = f", {row['mesh']}" if row.get("mesh") else ""
    cells = [row["recipe"], row["topology"] + mesh, "yes" if row["ok"] else "NO"]
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
    made = ["-"] * 3
    if used := row.get("compilation"):
        seconds = used["seconds"], used["cpu_seconds"]
        made = [*(f"{each / 60:.1f}" for each in seconds), _gib(used["peak_bytes"])]
    summed = _gib(4 * row["parameters"])  # float32 gradients
    if (known := row.get("collectives")) is not None:
        summed = ", ".join(f"{kind} {_gib(size)}" for kind, size in known.items()) or _gib(0)
    shape = f"{row['rows']} x {row['length']}"
    return [*cells, shape, *memory, summed, largest, *speed, *made, row.get("commit", "-")]


def problems(rows: Sequence[dict]) -> str:
    """One line for each problem, with its op, and below it the line of code that it comes from."""
    lines = []
    for each in rows:
        for one in each["problems"]:
            op = f": {one['op']}" if one["op"] else ""
            source = f"\n    {one['source']}" if one["source"] else ""
            lines.append(f"{each['recipe']} on {each['topology']}: {one['what']}{op}{source}\n")
    return "".join(lines)


def merged(rows: Sequence[dict], text: str, where: str) -> list[dict]:
    """Merges new rows into those of the JSON text; a new row replaces one about the same check.

    Args:
        where: name of the file, for error messages.
    """
    try:
        both = [*parse_json(text, rows=list)["rows"], *rows]
        names = ("recipe", "topology", "rows", "mesh")
        return list({tuple(row.get(name) for name in names): row for row in both}.values())
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{where} holds no results of tpu_check: {error}") from error


def as_json(rows: Sequence[dict], facts: dict) -> str:
    """JSON of the rows, the command that makes them, and the versions that they depend on.

    Args:
        facts: "options" of the command besides recipes and topologies; "versions" by package.
    """
    record = {"command": _command(rows, facts), "versions": facts["versions"], "rows": list(rows)}
    return json.dumps(record, indent=1) + "\n"


def as_markdown(rows: Sequence[dict], facts: dict) -> str:
    """The table and what its columns mean."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"""# Each recipe's train step, compiled for a TPU without one

`{_command(rows, facts)}`; {versions}.

One core's share of an update: forward, backward, the gradient's norm, the optimizer's step. Memory
is the compiler's own analysis, in GiB. Cycles are the compiler's estimates, each loop counted as
often as it runs, turned into time at the clock that makes the chip's peak; nothing ran on a TPU.
Random bits are the chip's own, as TensorFlow draws them there.
Not in them: the sum of gradients over the cores, and waiting for data. Collectives, in GiB: 4 bytes
a parameter are what data parallel cores sum once an update; of a mesh, arrays that the compiled
program's collectives bring a core, by kind. Times compare recipes. The compilation itself: minutes
beside other work, its CPU minutes, GiB of its process, the commit.

{table(rows)}
{problems(rows)}"""


def _command(rows: Sequence[dict], facts: dict) -> str:
    """The command that makes all of these rows."""
    recipes, topologies = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("recipe", "topology")
    )
    words = [*recipes, *studies.flags("--topology", *topologies), *facts["options"]]
    return shlex.join(["python", "-m", "experiments.lab.tpu_check", *words])


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"
