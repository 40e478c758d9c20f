"""Estimates the TPU chip-hours that recipes need, from the results of `tpu_check`.

    python -m experiments.lab.chip_hours experiments/results/tpu_check.json
    python -m experiments.lab.chip_hours experiments/results/tpu_check.json \\
        --readme experiments/cloud/README.md

The first command prints the table. With `--readme`, the table replaces the text between these lines
of the given file:

    <!-- written by experiments.lab.chip_hours -->
    <!-- end of chip-hours -->
"""

import argparse
import math

from experiments import registry, studies
from experiments.elmo.run import ElmoRecipe
from experiments.lab.tpu_check.chips import chip_of
from experiments.pretrain.run import PretrainingRecipe
from experiments.recipe import Recipe
from experiments.tcn.run import SequenceRecipe
from macaron_tf.cli.arguments import path_argument, single_program
from macaron_tf.distribution.mesh import parse_mesh
from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_bytes, read_json, refuse_damage, write_atomic
from macaron_tf.plug_ins import find, is_import_path

MARKS = ("<!-- written by experiments.lab.chip_hours -->", "<!-- end of chip-hours -->")


def tokens_of_update(recipe: Recipe) -> int:
    """Returns the maximum number of tokens in an update, including padding.

    For translation, only the tokens of one side (source or target) count.

    Args:
        recipe: recipe for pre-training, ELMo or translation.
    """
    if isinstance(recipe, PretrainingRecipe):
        tokens = recipe.batch_size * recipe.corpus.sequence_length
    elif isinstance(recipe, ElmoRecipe):
        tokens = recipe.batch_size * recipe.row_length
    else:
        tokens = recipe.data.batching.max_tokens
    return tokens * recipe.training.accumulation_steps


def table(rows: list[dict], trust_code: bool = False) -> str:
    """Formats a Markdown table of chip-hours.

    Args:
        rows: rows of a JSON file that `tpu_check` wrote. The table leaves out rows with a failed
            check, rows with a mesh of several cores, which may share a micro-batch, and TCN
            recipes, whose steps are not counted in tokens.
        trust_code: whether to run recipes of the user's that the rows name.
    """
    rows = [row for row in rows if row["ok"] and _num_cores(row) == 1]
    recipes = {row["recipe"]: _recipe(row["recipe"], trust_code) for row in rows}
    lines = [
        _cells(row, recipes[row["recipe"]])
        for row in rows
        if not isinstance(recipes[row["recipe"]], SequenceRecipe)
    ]
    names = ["recipe", "updates", "tokens per update", "tokens per core and step", "ms per step"]
    names += ["slice", "chips", "steps per update", "hours", "chip-hours"]
    return "\n".join([*studies.table(names, lines), ""])


def _num_cores(row: dict) -> int:
    """Returns the number of cores in a row's mesh; a row of the TensorFlow engine has no mesh."""
    return math.prod(parse_mesh(row.get("mesh") or "data=1").values())


def _recipe(name: str, trust_code: bool) -> Recipe:
    if is_import_path(name):
        find(name, trust_code=trust_code)  # `registry.load` is for names that the user wrote
    return registry.load(name)


def _cells(row: dict, recipe: Recipe) -> list[str]:
    chip = chip_of(row["topology"])
    updates, tokens = recipe.training.max_steps, tokens_of_update(recipe)
    tokens_per_core = row["rows"] * row["length"]
    chips_for_one_step = tokens / (tokens_per_core * chip.cores)
    chips = max(
        (size for size in chip.slices if size <= chips_for_one_step), default=chip.slices[0]
    )
    steps = math.ceil(chips_for_one_step / chips)
    hours = updates * steps * row["milliseconds"] / 3.6e6
    cells = f"{updates:,} {tokens:,} {tokens_per_core:,} {row['milliseconds']:.1f} "
    cells += f"{chip.slice_name(chips)} {chips} {steps} {hours:,.1f} {chips * hours:,.0f}"
    return [row["recipe"], *cells.split()]


def with_table(guide: str, rows: str, where: str) -> str:
    """Returns the text `guide` with the table `rows` between the two `MARKS`.

    Args:
        guide: Markdown text that contains the two marks.
        rows: table to insert, which replaces the text between the marks.
        where: path of the file with `guide`, for error messages.

    Raises:
        UserError: `guide` does not contain the two marks in this order.
    """
    first, last = MARKS
    before, has_first, after_first = guide.partition(first)
    _, has_last, after = after_first.partition(last)
    if not has_first or not has_last:
        raise UserError(
            f"{where} does not contain the lines {first} and {last} in this order: add these lines "
            "where the table belongs"
        )
    return f"{before}{first}\n{rows}{last}{after}"


def run(options: argparse.Namespace) -> None:
    """Runs the command: prints the table, or writes the table into the file of `--readme`."""
    mend = "give a file that `tpu_check --json` wrote"
    with refuse_damage(options.results, mend):
        records = read_json(options.results, mend=mend, rows=list)["rows"]
        rows = table(records, options.trust_code)
    if not options.readme:
        print(rows, end="")
        return
    guide = read_bytes(options.readme).decode()
    write_atomic(options.readme, with_table(guide, rows, options.readme).encode())


main = single_program(
    "experiments.lab.chip_hours",
    __doc__,
    "experiments.lab.chip_hours:run",
    path_argument("results", "JSON file written by `tpu_check --json`"),
    path_argument(
        "--readme FILE",
        "Markdown file whose table of chip-hours the command replaces (default: print the table)",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
