"""Checks on a CPU machine, without a TPU, that a recipe is fit for one.

    python -m experiments.tpu_check bert_base swish_rnn_base --topology v4:2x2x1
    python -m experiments.tpu_check wmt14_macaron_base --batch 8192 --topology v5e:2x2

builds each recipe's train step as `fit` runs it (static shapes, bfloat16), compiles it with the TPU
compiler, and says: whether it compiles, and if not which op stands in the way and on which line
that is; what memory a core needs; the largest batch that fits; shapes that depend on values; and
the compiler's estimate of a step's time, loops counted. It exits with 0 where every recipe passes,
with 1 where one does not, and with 2 where the command is wrong.

The compiler is installed by `make tpu-check`, or by
`pip install -r experiments/tpu_check/requirements.txt`
in an environment of its own. A recipe of base size takes a minute or two and 6 GB.
"""

import argparse
import gc
import pathlib
import sys

from experiments.command_line import settings
from experiments.tpu_check.chips import chip_of, listing
from experiments.tpu_check.compiler import check_installed, versions
from macaron_tf.errors import UserError, exit_on_user_error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.tpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("recipe", nargs="*", help="names of pre-training and translation recipes")
    add(
        "--topology",
        action="append",
        metavar="CHIP:SHAPE",
        help="such as v4:2x2x1 (default) or v5e:2x2; may be given again. One core is compiled for, "
        "so that the shape changes nothing",
    )
    add(
        "--batch",
        type=int,
        metavar="N",
        help="a core's micro-batch: rows of pre-training, tokens on one side of translation "
        "(default: the recipe's own)",
    )
    add(
        "--compilations",
        type=int,
        default=4,
        metavar="N",
        help="how many to spend on each recipe and topology in search of the largest batch; 1 = "
        "the given batch alone (default %(default)s)",
    )
    add("--json", metavar="FILE", help="add the results to this file, after each recipe")
    add("--markdown", metavar="FILE", help="write the table there; with --json, of all of its rows")
    add("--hlo", metavar="DIR", help="keep the compiler's optimized programs there")
    add("--list", action="store_true", help="list the chips")
    settings("model.rnn_step_sizes=1 or training.dtype_policy=float32")(parser)
    return parser


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Checks the recipes; see `--help`."""
    options = _parser().parse_args(arguments)
    if options.list:
        print(listing())
        return 0
    if not options.recipe:
        raise UserError("name a recipe, such as bert_base; `pretrain recipes` lists them")
    options.topology = options.topology or ["v4:2x2x1"]
    for topology in options.topology:
        chip_of(topology)
    for name in ("batch", "compilations"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: give a whole number of 1 or more")
    check_installed()
    # After the checks: TensorFlow takes seconds to import.
    from experiments.tpu_check.step import shape_of, tpu_recipe

    # Wrong settings are said before minutes are spent.
    chosen = {name: tpu_recipe(name, options.set) for name in options.recipe}
    for recipe in chosen.values():
        recipe.model_config()
        shape_of(recipe, options.batch)
    batch = [] if options.batch is None else ["--batch", str(options.batch)]
    given = [word for setting in options.set for word in ("--set", setting)]
    facts = {
        "options": [*batch, "--compilations", str(options.compilations), *given],
        "versions": versions(("tensorflow", "keras", "jax", "libtpu")),
    }
    from experiments.tpu_check import report

    found = []
    for name, recipe in chosen.items():
        found += _check(name, recipe, options)
        gc.collect()  # a model and its graphs hold each other, gigabytes of them
        _write(found, facts, options)
    print(report.table(found))
    print(report.problems(found), end="")
    return 0 if all(row.ok for row in found) else 1


def _check(name: str, recipe, options: argparse.Namespace) -> list:
    """A recipe's rows, one a topology. The steps are traced once for all of them."""
    from experiments.tpu_check import compiler, report, step

    _say(f"{name}: building the model")
    model = step.build_model(recipe)
    parameters = model.network.count_params()
    shape = step.shape_of(recipe, options.batch)
    traces: dict[int, step.Traced] = {}

    def traced(rows: int) -> step.Traced:
        if rows not in traces:
            _say(f"{name}: tracing the step of {rows} x {shape.length}")
            specs = step.batch_specs(recipe, step.Shape(rows, shape.length))
            traces[rows] = step.trace(model, specs)
        return traces[rows]

    first = traced(shape.rows)
    found = []
    for topology in options.topology:
        if first.problems:
            size = (shape.rows, shape.length, parameters)
            found.append(report.Row(name, topology, *size, first.problems))
            continue

        def compiled(rows: int, topology=topology) -> dict:
            hlo = traced(rows).hlo
            _say(f"{name}: compiling the step of {rows} x {shape.length} for {topology}")
            return compiler.compile_step(hlo, topology, _text(name, topology, rows, options.hlo))

        limit = chip_of(topology).core_bytes
        results = compiler.search(compiled, shape.rows, limit, options.compilations)
        found.append(report.row(name, topology, shape.length, parameters, results, first.sources))
    return found


def _text(name: str, topology: str, rows: int, folder: str | None) -> pathlib.Path | None:
    if folder is None:
        return None
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--hlo {folder}: {error.strerror}; choose another place") from error
    return pathlib.Path(folder) / f"{name}-{topology.replace(':', '-')}-{rows}.hlo"


def _write(rows: list, facts: dict, options: argparse.Namespace) -> None:
    from experiments.tpu_check import report
    from macaron_tf.io.paths import write_aside

    if options.json:
        path = pathlib.Path(options.json)
        if path.is_file():
            rows = report.merged(rows, path.read_text(encoding="utf-8"), str(path))
        write_aside(path, report.as_json(rows, facts).encode())
    if options.markdown:
        write_aside(options.markdown, report.as_markdown(rows, facts).encode())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
