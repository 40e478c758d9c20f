"""The command `tpu_check`: checks recipes, and reports the results as JSON and Markdown.

The JSON file has one row for each combination of recipe, topology, number of rows and mesh. These
fields are always set:

- "ok": whether the recipe passes
- "recipe" and "topology": their names
- "rows" and "length": shape of a core's micro-batch
- "parameters": number of parameters
- "problems": list of dicts, as `step.problem` returns them
- "loops": list of dicts with the fields of `cycles.Loop`, one for each outermost loop

These fields are null if they are unknown:

- "memory": dict mapping a purpose, such as "temporaries", to bytes
- "memory_total" and "memory_limit": bytes that the step needs, and bytes that a core has
- "largest_rows": largest number of rows that was compiled and fits
- "tried": dict mapping each compiled number of rows to whether it fits
- "cycles" and "loop_cycles": cycles in a step, and cycles in loops
- "milliseconds": step time at the chip's clock
- "tokens_a_second": throughput of a core
- "compilation" and "collectives": see `compiler.compile_step`

The fields "settings", "mesh" and "compilations" have the values of the flags; "mesh" is null with
`--engine tensorflow`. The field "commit" is the commit that was checked out, and "versions" maps
each package to its version.
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
from experiments.versions import commit
from macaron_tf.distribution.mesh import parse_mesh, use_mesh
from macaron_tf.errors import UserError, parse_json
from macaron_tf.io.paths import clear_errors, write_atomic

_PACKAGES = ("tensorflow", "keras", "jax", "libtpu")
_COLUMNS = (
    "recipe", "topology", "passes", "batch per core", "GiB: arguments", "temporaries",
    "total / limit", "collectives", "largest batch that fits", "Mcycles per step",
    "in loops", "ms per step", "tokens/s per core", "relative time per token", "minutes",
    "CPU minutes", "GiB", "commit",
)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Runs the command `tpu_check`, and returns the exit status."""
    if options.list:
        print(listing())
        return 0
    if options.slices:
        slices.run(options.markdown)
        return 0
    if not options.recipe:
        raise UserError(
            "no recipe is given: give a recipe, such as bert_base (`macaron pretrain "
            "recipes` lists the recipes for pre-training)"
        )
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
    # Report wrong settings before compilations, which take minutes.
    steps = {name: step_of(name, options.set) for name in options.recipe}
    for step in steps.values():
        step.recipe.model_config()
        step.shape(options.batch)
    if options.resume and not options.json:
        raise UserError(
            "--resume has no effect without --json: add --json FILE, or leave --resume out"
        )
    if options.hlo:
        with clear_errors(f"the folder --hlo {options.hlo} cannot be made", "choose another path"):
            pathlib.Path(options.hlo).mkdir(parents=True, exist_ok=True)
    batch_flags = [] if options.batch is None else ["--batch", str(options.batch)]
    setting_flags = studies.flags("--set", *options.set)
    mesh_flags = ["--engine", "jax", "--mesh", options.mesh] if options.mesh else []
    facts = {
        "options": [
            *batch_flags,
            "--compilations",
            str(options.compilations),
            *mesh_flags,
            *setting_flags,
        ],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }
    shared_fields = {"settings": options.set, "commit": commit(), "mesh": options.mesh}
    shared_fields |= {"compilations": options.compilations, "versions": facts["versions"]}
    resumes = options.resume and not shared_fields["commit"].endswith("-dirty")
    file = pathlib.Path(options.json) if options.json else None
    results = []

    def write() -> None:
        rows = results
        if file:
            if file.is_file():
                rows = merged(results, file.read_text(encoding="utf-8"), str(file))
            write_atomic(file, as_json(rows, facts).encode())
        if options.markdown:
            write_atomic(options.markdown, as_markdown(rows, facts).encode())

    for name, step in steps.items():
        topologies = options.topology
        if resumes and file and file.is_file():
            earlier = merged([], file.read_text(encoding="utf-8"), str(file))
            fields = shared_fields | {"recipe": name, "rows": step.shape(options.batch).rows}
            reused = [row for row in earlier if all(row.get(key) == fields[key] for key in fields)]
            results += [row for row in reused if row["topology"] in topologies]
            done = {row["topology"] for row in reused}
            topologies = [topology for topology in topologies if topology not in done]
        for row in _check(name, step, options, topologies) if topologies else ():
            results.append(row | shared_fields)
            write()
        gc.collect()  # frees gigabytes: a model and its graphs form reference cycles
    write()  # in case every row was reused
    print(table(results))
    print(problems(results), end="")
    return 0 if all(row["ok"] for row in results) else 1


def _check(
    name: str, step: Step, options: argparse.Namespace, topologies: Sequence[str]
) -> Iterator[dict]:
    """Yields the result rows of a recipe, one for each topology.

    Each batch size is traced only once, even if it is compiled for several topologies.
    """
    _say(f"{name}: building the model")
    model = step.build()
    shape = step.shape(options.batch)
    mesh = options.mesh and parse_mesh(options.mesh)

    @functools.cache
    def traced(rows: int) -> Traced:
        _say(f"{name}: tracing a step with {rows} rows of length {shape.length}")
        return step.trace(model, shape._replace(rows=rows))

    def compiled(topology: str, rows: int) -> dict:
        hlo, text = traced(rows).hlo, None
        _say(f"{name}: compiling for {topology} with {rows} rows of length {shape.length}")
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
    """Makes a result row. The docstring of the module describes the fields.

    Args:
        recipe: name of the recipe.
        topology: name of the topology, such as `v4:2x2x1`.
        shape: number of rows and row length of a micro-batch.
        parameters: number of parameters of the network.
        traced: the traced step.
        results: output of `compiler.search`. The first result belongs to a batch of `shape`; an
            empty dict means that nothing was compiled.
        sharing: number of cores that share one copy of the weights and one micro-batch.
    """
    chip, first = chip_of(topology), next(iter(results.values()), {})
    tried = {
        num_rows: compiler.fits(result, chip.core_bytes) for num_rows, result in results.items()
    }
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
        "largest_rows": max((num_rows for num_rows, fit in tried.items() if fit), default=None),
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
            f"out of memory: {_gib(compiler.memory_total(result))} GiB needed, "
            f"{_gib(limit)} GiB available"
        )
    if result.get("cores_a_chip", cores) != cores:
        yield problem(
            f"the number of cores per chip is {result['cores_a_chip']} in libtpu, but {cores} in "
            "chips.py"
        )
    for loop in result.get("cycles", {}).get("loops", ()):
        if loop["trips"] is None:
            source = sources.of(loop["name"])
            yield problem(
                "a loop has an unknown number of iterations and counts once", loop["name"], source
            )


def table(rows: Sequence[dict]) -> str:
    """Returns the Markdown table of result rows.

    The column "relative time per token" is relative to the first row that passes on the same
    topology.
    """
    lines = []
    for row in rows:
        first = next(
            (other for other in rows if other["topology"] == row["topology"] and other["ok"]), None
        )
        lines.append(_cells(row, first))
    return "\n".join(studies.table(_COLUMNS, lines)) + "\n"


def _cells(row: dict, first: dict | None) -> list[str]:
    mesh = f", {row['mesh']}" if row.get("mesh") else ""
    cells = [row["recipe"], row["topology"] + mesh, "yes" if row["ok"] else "NO"]
    memory_cells, speed_cells, largest = ["-"] * 3, ["-"] * 5, "-"
    if row["memory"]:
        memory_cells[:2] = _gib(row["memory"]["arguments"]), _gib(row["memory"]["temporaries"])
    if row["memory_total"]:
        memory_cells[2] = f"{_gib(row['memory_total'])} / {_gib(row['memory_limit'])}"
    if row["largest_rows"]:
        too_large = [int(num_rows) for num_rows, fit in row["tried"].items() if not fit]
        largest = f"{row['largest_rows']}" + (f", not {min(too_large)}" if too_large else "")
    if row["cycles"]:
        speed_cells = [
            f"{row['cycles'] / 1e6:.1f}",
            f"{row['loop_cycles'] / row['cycles']:.0%}",
            f"{row['milliseconds']:.1f}",
            f"{row['tokens_a_second']:,.0f}",
            f"{first['tokens_a_second'] / row['tokens_a_second']:.2f}" if first else "-",
        ]
    compilation_cells = ["-"] * 3
    if used := row.get("compilation"):
        seconds = used["seconds"], used["cpu_seconds"]
        compilation_cells = [*(f"{each / 60:.1f}" for each in seconds), _gib(used["peak_bytes"])]
    summed = _gib(4 * row["parameters"])  # float32 gradients
    if (sizes := row.get("collectives")) is not None:
        summed = ", ".join(
            f"{collective} {_gib(size)}" for collective, size in sizes.items()
        ) or _gib(0)
    shape = f"{row['rows']} x {row['length']}"
    return [
        *cells,
        shape,
        *memory_cells,
        summed,
        largest,
        *speed_cells,
        *compilation_cells,
        row.get("commit", "-"),
    ]


def problems(rows: Sequence[dict]) -> str:
    """Returns a line of text for each problem, followed by its line of source code if known."""
    lines = []
    for row in rows:
        for found_problem in row["problems"]:
            op = f": {found_problem['op']}" if found_problem["op"] else ""
            source = f"\n    {found_problem['source']}" if found_problem["source"] else ""
            lines.append(
                f"{row['recipe']} on {row['topology']}: {found_problem['what']}{op}{source}\n"
            )
    return "".join(lines)


def merged(rows: Sequence[dict], text: str, where: str) -> list[dict]:
    """Adds new rows to the rows in a JSON text, and returns all rows.

    A new row replaces the earlier row of the same recipe, topology, number of rows and mesh. All
    other new rows follow the earlier rows.

    Args:
        rows: the new rows.
        text: output of `as_json`.
        where: path of the file that `text` comes from, for error messages.

    Raises:
        UserError: `text` is not the output of `as_json`.
    """
    try:
        both = [*parse_json(text, rows=list)["rows"], *rows]
        names = ("recipe", "topology", "rows", "mesh")
        return list({tuple(row.get(name) for name in names): row for row in both}.values())
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where} does not contain results of tpu_check ({error}): give --json another file"
        ) from error


def as_json(rows: Sequence[dict], facts: dict) -> str:
    """Returns the JSON text of result rows, with the command and the package versions.

    Args:
        rows: the result rows.
        facts: dict with "options", the list of the arguments that determine the results, except
            recipes and topologies, and "versions", a dict mapping package to version.
    """
    record = {"command": _command(rows, facts), "versions": facts["versions"], "rows": list(rows)}
    return json.dumps(record, indent=1) + "\n"


def as_markdown(rows: Sequence[dict], facts: dict) -> str:
    """Returns a Markdown page with the table of results. For `facts`, see `as_json`."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"""# Each recipe's train step, compiled for a TPU without one

`{_command(rows, facts)}`; {versions}.

Each row is one core's part of an update: the forward pass, the backward pass, the gradient norm and
the optimizer step. Nothing ran on a TPU. Memory is the compiler's analysis, in GiB. Cycles are the
compiler's estimates, in which a loop's cycles count once per iteration. The step time follows from
the cycles and the clock at which the chip reaches its peak rate. Without a mesh, random bits come
from the chip's own generator, as with TensorFlow on a TPU, and the step time does not include the
sum of the gradients over cores. No step time includes waiting for data. Use step times only to
compare recipes.

The column "collectives" is in GiB. Without a mesh it is 4 bytes per parameter, which data-parallel
cores sum once per update. With a mesh it is the size of the arrays that a core receives, by type of
collective. The last columns describe the compilation: elapsed minutes on a machine with other work,
CPU minutes, peak memory of the process, and the commit.

{table(rows)}
{problems(rows)}"""


def _command(rows: Sequence[dict], facts: dict) -> str:
    """Returns a command line with the recipes and topologies of all `rows`."""
    recipes, topologies = (
        list(dict.fromkeys(row[name] for row in rows)) for name in ("recipe", "topology")
    )
    arguments = [*recipes, *studies.flags("--topology", *topologies), *facts["options"]]
    return shlex.join(["python", "-m", "experiments.lab.tpu_check", *arguments])


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"
