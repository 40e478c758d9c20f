"""The check of each recipe, from its model to the report."""

import argparse
import functools
import gc
import importlib.metadata
import pathlib
import sys

from experiments import studies
from experiments.tpu_check import compiler, report
from experiments.tpu_check.chips import chip_of, listing
from experiments.tpu_check.sources import Traced
from experiments.tpu_check.step import Step, step_of
from macaron_tf.errors import UserError
from macaron_tf.io.paths import clear_errors, write_aside

_PACKAGES = ("tensorflow", "keras", "jax", "libtpu")


def run(options: argparse.Namespace) -> int:
    """Checks the recipes; the exit status."""
    if options.list:
        print(listing())
        return 0
    if not options.recipe:
        raise UserError("name a recipe, such as bert_base; `pretrain recipes` lists them")
    options.topology = options.topology or ["v4:2x2x1"]
    for topology in options.topology:
        chip_of(topology)
    compiler.check_installed()
    # Wrong settings are said before minutes are spent.
    steps = {name: step_of(name, options.set) for name in options.recipe}
    for one in steps.values():
        one.recipe.model_config()
        one.shape(options.batch)
    if options.hlo:
        with clear_errors(f"--hlo {options.hlo} cannot be written", "choose another place"):
            pathlib.Path(options.hlo).mkdir(parents=True, exist_ok=True)
    batch = [] if options.batch is None else ["--batch", str(options.batch)]
    given = studies.flags("--set", *options.set)
    facts = {
        "options": [*batch, "--compilations", str(options.compilations), *given],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }
    found = []
    for name, one in steps.items():
        found += _check(name, one, options)
        gc.collect()  # a model and its graphs hold each other, gigabytes of them
        rows = found
        if options.json:
            path = pathlib.Path(options.json)
            if path.is_file():
                rows = report.merged(found, path.read_text(encoding="utf-8"), str(path))
            write_aside(path, report.as_json(rows, facts).encode())
        if options.markdown:
            write_aside(options.markdown, report.as_markdown(rows, facts).encode())
    print(report.table(found))
    print(report.problems(found), end="")
    return 0 if all(row["ok"] for row in found) else 1


def _check(name: str, step: Step, options: argparse.Namespace) -> list[dict]:
    """A recipe's rows, one a topology. The steps are traced once for all of them."""
    _say(f"{name}: building the model")
    model = step.build()
    shape = step.shape(options.batch)

    @functools.cache
    def traced(rows: int) -> Traced:
        _say(f"{name}: tracing the step of {rows} x {shape.length}")
        return step.trace(model, shape._replace(rows=rows))

    def compiled(topology: str, rows: int) -> dict:
        hlo, text = traced(rows).hlo, None
        _say(f"{name}: compiling the step of {rows} x {shape.length} for {topology}")
        if options.hlo:
            text = pathlib.Path(options.hlo) / f"{name}-{topology.replace(':', '-')}-{rows}.hlo"
        return compiler.compile_step(hlo, topology, text)

    first, found = traced(shape.rows), []
    for topology in options.topology:
        results = {}
        if not first.problems:
            compile_ = functools.partial(compiled, topology)
            limit = chip_of(topology).core_bytes
            results = compiler.search(compile_, shape.rows, limit, options.compilations)
        parameters = model.network.count_params()
        found.append(report.row(name, topology, shape, parameters, first, results))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
