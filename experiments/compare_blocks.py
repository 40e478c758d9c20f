"""Two blocks at equal parameters and an equal budget of updates: the paper's table 1 in small.

    python -m experiments.compare_blocks --data-dir DIR

trains a recipe with each block and each seed (about 15 minutes a run on two cores), averages the
last checkpoints, translates the validation split with the recipe's beam search, and writes
experiments/results/NAME.md, .json and .png: BLEU by seed, mean and standard deviation, and a
paired bootstrap for each seed. Runs that are complete are not trained again; a run of other
settings in the same folder is refused.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys

from experiments import registry
from experiments.figures import loss_curves
from experiments.recipe import check_same, override, recipe_from_json
from experiments.studies import command, write
from experiments.translate.recipe import TranslationRecipe
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.evaluation.translation import TranslationMetric, paired_bootstrap
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.progress import read_lines


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, then writes the table."""
    options = _parse(arguments)
    recipe = registry.load(options.recipe, TranslationRecipe)
    size = recipe.model.rpartition("_")[2]
    rows = []
    for seed in options.seeds:
        for block in options.blocks:
            run = pathlib.Path(options.runs) / f"{block}-{seed}"
            settings = [
                f"model={block}_{size}",
                f"training.seed={seed}",
                f"training.max_steps={options.steps}",
                f"training.warmup_steps={options.warmup}",
                *options.set,
            ]
            row = _train_and_score(options, run, settings)
            rows.append({"block": block, "seed": seed, **row})
    results = pathlib.Path(options.results)
    tests = [_bootstrap(rows, options.blocks, seed) for seed in options.seeds]
    kept = [{k: v for k, v in row.items() if k not in _TEXT} for row in rows]
    first, second = options.blocks
    title = f"{first} against {second}: {options.recipe}, {options.steps:,} updates a run"
    table = _table(kept, tests, options.blocks)
    write(
        results, options.name, options, title, table, "compare_blocks", rows=kept, bootstrap=tests
    )
    lines = {
        f"{row['block']} {row['seed']}": read_lines(pathlib.Path(row["run"]) / "metrics.jsonl")
        for row in rows
    }
    loss_curves(lines, results / f"{options.name}.png")


# Settings that have options of their own; --set of one would belie the table.
_OWN = ("model=", "training.seed=", "training.max_steps=", "training.warmup_steps=")
_TEXT = ("hypotheses", "references", "metric", "decoding", "precisions")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare_blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--recipe", default="multi30k_macaron_tiny", help="default %(default)s")
    add("--blocks", nargs=2, default=["macaron", "transformer"], metavar="BLOCK")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    add("--steps", type=int, default=1500, help="updates a run (default %(default)s)")
    add("--warmup", type=int, default=400, help="of them warm-up (default %(default)s)")
    add("--data-dir", metavar="DIR", help="TensorFlow Datasets' folder")
    add("--runs", default="runs/blocks", help="where the runs go (default %(default)s)")
    add("--results", default="experiments/results", help="where the table goes (%(default)s)")
    add("--name", default="multi30k_blocks", help="the table's file name (default %(default)s)")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="as `translate train`")
    options = parser.parse_args(arguments)
    options.arguments = list(arguments or sys.argv[1:])
    for setting in options.set:
        if setting.startswith(_OWN):
            raise UserError(f"--set {setting}: give --blocks, --seeds, --steps or --warmup instead")
    return options


def _train_and_score(options: argparse.Namespace, run: pathlib.Path, settings: list[str]) -> dict:
    """Trains and scores one run by the commands that a person would type; its scores."""
    recipe = override(registry.load(options.recipe, TranslationRecipe), settings)
    file = run / "recipe.json"
    if file.is_file():
        theirs = recipe_from_json(TranslationRecipe, file.read_text(encoding="utf-8"), str(file))
        check_same(theirs, recipe, run, ())
    data = ["--data-dir", options.data_dir] if options.data_dir else []
    # A folder of its own: RUN/scores may hold a person's evaluations of other text.
    output = run / "comparison"
    found = _own_scores(run, output, recipe)
    if not found:
        chosen = [word for setting in settings for word in ("--set", setting)]
        scored = ["--checkpoint", "average", "--output", str(output)]
        command("translate", "train", options.recipe, str(run), *data, *chosen)
        command("translate", "average", str(run))
        command("translate", "evaluate", str(run), *scored, *data)
        found = _own_scores(run, output, recipe)
    if len(found) != 1:
        raise UserError(
            f"{output} holds {len(found)} evaluations of the run's last average, not 1: "
            "remove that folder to evaluate again"
        )
    seconds = read_lines(run / "timing.jsonl")[-1]["seconds"]
    return {**found[0], "training_seconds": round(seconds, 1)}


def _own_scores(run: pathlib.Path, output: pathlib.Path, recipe: TranslationRecipe) -> list[dict]:
    """The evaluations in a folder of the average of the run's last regular checkpoints."""
    regular = CheckpointDirectory(run).steps(recipe.training.save_every_steps)
    records = []
    for path in sorted(output.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            about = (record["checkpoint"], record["steps"][-1], record["split"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} cannot be read as scores: remove it") from error
        if regular and about == ("average", regular[-1], recipe.data.validation_split):
            records.append(record)
    return records


def _bootstrap(rows: list[dict], blocks: list[str], seed: int) -> dict:
    first, second = (
        next(row for row in rows if row["block"] == block and row["seed"] == seed)
        for block in blocks
    )
    compared = paired_bootstrap(
        first["hypotheses"],
        second["hypotheses"],
        first["references"],
        TranslationMetric(**first["metric"]),
    )
    return {"seed": seed, **dataclasses.asdict(compared)}


def _table(rows: list[dict], tests: list[dict], blocks: list[str]) -> list[str]:
    """Lines of Markdown: a run a row, the mean of each block, and the tests of each seed."""
    lines = ["| block | seed | tokenized BLEU | sacreBLEU | chrF | minutes |"]
    lines.append("|---|---|---|---|---|---|")
    for block in blocks:
        mine = [row for row in rows if row["block"] == block]
        lines += [
            f"| {block} | {row['seed']} | {row['tokenized_bleu']:.2f} | {row['bleu']:.2f} "
            f"| {row['chrf']:.2f} | {row['training_seconds'] / 60:.1f} |"
            for row in mine
        ]
        scores = [row["tokenized_bleu"] for row in mine]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        lines.append(f"| {block} | mean | **{statistics.mean(scores):.2f}** ± {spread:.2f} | | | |")
    lines += ["", f"| seed | {blocks[1]} - {blocks[0]} | 95% interval | p |", "|---|---|---|---|"]
    lines += [
        f"| {test['seed']} | {test['difference']:+.2f} "
        f"| {test['interval'][0]:+.2f} to {test['interval'][1]:+.2f} | {test['p_value']:.3f} |"
        for test in tests
    ]
    signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in rows}
    return lines + [""] + [f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures)]


if __name__ == "__main__":
    sys.exit(main())
