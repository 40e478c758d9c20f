"""What the papers' runs cost in chip-hours, from what `tpu_check` found.

    python -m experiments.cloud.cost experiments/results/tpu_check.json
    python -m experiments.cloud.cost experiments/results/tpu_check.json \\
        --readme experiments/cloud/README.md

prints the table, or writes it between the guide's marks.
"""

import argparse
import json
import pathlib
import sys

from experiments import registry
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.recipe import Recipe
from experiments.tpu_check.chips import chip_of
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.io.paths import write_aside

MARKS = ("<!-- costs: written by experiments.cloud.cost -->", "<!-- end of costs -->")
_COLUMNS = (
    "recipe", "chip", "updates", "tokens an update", "tokens a core and step", "ms a step",
    "chips", "hours", "chip-hours",
)  # fmt: skip


def tokens_of_update(recipe: Recipe) -> int:
    """Tokens of all micro-batches of an update; of translation, on one side."""
    if isinstance(recipe, PretrainingRecipe):
        tokens = recipe.batch_size * recipe.corpus.sequence_length
    else:
        tokens = recipe.data.batching.max_tokens
    return tokens * recipe.training.accumulation_steps


def table(rows: list[dict]) -> str:
    """Costs in Markdown, a line for each of `tpu_check`'s rows that passes."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for row in rows:
        if row["ok"]:
            lines.append(f"| {' | '.join(_cells(row))} |")
    return "\n".join(lines) + "\n"


def _cells(row: dict) -> list[str]:
    recipe, chip = registry.load(row["recipe"]), chip_of(row["topology"])
    updates, tokens = recipe.training.max_steps, tokens_of_update(recipe)
    a_core = row["rows"] * row["length"]
    chips = tokens / (a_core * chip.cores)
    hours = updates * row["milliseconds"] / 3.6e6
    return [
        row["recipe"],
        row["topology"].partition(":")[0],
        f"{updates:,}",
        f"{tokens:,}",
        f"{a_core:,}",
        f"{row['milliseconds']:.1f}",
        f"{chips:g}",
        f"{hours:,.1f}",
        f"{chips * hours:,.0f}",
    ]


def with_table(guide: str, costs: str, where: str) -> str:
    """The guide with the table between its marks.

    Raises:
        UserError: it has no such marks.
    """
    first, last = MARKS
    before, begun, rest = guide.partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        raise UserError(f"{where} lacks the lines {first} and {last}: put them around the table")
    return f"{before}{first}\n{costs}{last}{after}"


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Prints the table, or writes it into the guide."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cloud.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", help="what `tpu_check --json` wrote")
    parser.add_argument("--readme", metavar="FILE", help="the guide to write into")
    options = parser.parse_args(arguments)
    try:
        rows = json.loads(pathlib.Path(options.results).read_text(encoding="utf-8"))["rows"]
        costs = table(rows)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{options.results} holds no results of tpu_check: {error}") from error
    if not options.readme:
        print(costs, end="")
        return
    try:
        guide = pathlib.Path(options.readme).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--readme {options.readme} cannot be read: {error.strerror}") from error
    write_aside(options.readme, with_table(guide, costs, options.readme).encode())


if __name__ == "__main__":
    sys.exit(main())
