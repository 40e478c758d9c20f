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
import subprocess
import sys

from experiments import recipes
from experiments.figures import loss_curves
from experiments.recipe import override, recipe_from_json
from experiments.translate.recipe import TranslationRecipe
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.evaluation.translation import TranslationMetric, paired_bootstrap
from macaron_tf.io.paths import write_aside
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.progress import read_lines


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, then writes the table."""
    options = _parse(arguments)
    recipe = recipes.load(options.recipe, TranslationRecipe)
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
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    record = {
        "command": " ".join(["python -m experiments.compare_blocks", *(arguments or sys.argv[1:])]),
        "commit": commit,
        "rows": [{k: v for k, v in row.items() if k not in _TEXT} for row in rows],
        "bootstrap": tests,
    }
    write_aside(results / f"{options.name}.json", (json.dumps(record, indent=1) + "\n").encode())
    table = _table(record, options)
    write_aside(results / f"{options.name}.md", table.encode())
    curves = {f"{row['block']} {row['seed']}": pathlib.Path(row["run"]) for row in rows}
    loss_curves(
        {name: read_lines(run / "metrics.jsonl") for name, run in curves.items()},
        results / f"{options.name}.png",
    )
    print(table)


# What the options decide: a setting that overrode it would belie the table.
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
    for setting in options.set:
        if setting.startswith(_OWN):
            raise UserError(f"--set {setting}: give --blocks, --seeds, --steps or --warmup instead")
    return options


def _train_and_score(options: argparse.Namespace, run: pathlib.Path, settings: list[str]) -> dict:
    """One run by the same commands that a person would type, then what `evaluate` wrote."""
    recipe = override(recipes.load(options.recipe, TranslationRecipe), settings)
    _check_recipe(run, recipe)
    data = ["--data-dir", options.data_dir] if options.data_dir else []
    # A folder of its own: RUN/scores may hold a person's evaluations of other text.
    output = run / "comparison"
    found = _own_scores(run, output, recipe)
    if not found:
        chosen = [word for setting in settings for word in ("--set", setting)]
        _translate("train", options.recipe, str(run), *data, *chosen)
        _translate("average", str(run))
        _translate("evaluate", str(run), "--checkpoint", "average", "--output", str(output), *data)
        found = _own_scores(run, output, recipe)
    if len(found) != 1:
        raise UserError(
            f"{output} holds {len(found)} evaluations of the run's last average, not 1: "
            "remove that folder to evaluate again"
        )
    seconds = read_lines(run / "timing.jsonl")[-1]["seconds"]
    return {**found[0], "training_seconds": round(seconds, 1)}


def _check_recipe(run: pathlib.Path, recipe: TranslationRecipe) -> None:
    """Refuses a folder that holds a run of other settings than the table is to say."""
    file = run / "recipe.json"
    if not file.is_file():
        return
    theirs = recipe_from_json(TranslationRecipe, file.read_text(encoding="utf-8"), str(file))
    for field in dataclasses.fields(recipe):
        found, wanted = getattr(theirs, field.name), getattr(recipe, field.name)
        if found != wanted:
            raise UserError(
                f"{run} holds a run of another {field.name}, {_difference(found, wanted)}: give "
                "another folder by --runs, or the settings of that run"
            )


def _difference(found, wanted) -> str:
    if not dataclasses.is_dataclass(found):
        return f"{found!r} instead of {wanted!r}"
    pairs = [
        (f.name, getattr(found, f.name), getattr(wanted, f.name)) for f in dataclasses.fields(found)
    ]
    return ", ".join(f"{name} {a!r} instead of {b!r}" for name, a, b in pairs if a != b)


def _own_scores(run: pathlib.Path, output: pathlib.Path, recipe: TranslationRecipe) -> list[dict]:
    """What `evaluate` wrote here about the average of the run's last regular checkpoints."""
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


def _translate(*arguments: str) -> None:
    """A process of its own, so that each run starts from nothing but its seed."""
    status = subprocess.run(
        [sys.executable, "-m", "experiments.translate", *arguments], check=False
    )
    if status.returncode:
        raise UserError(f"`translate {' '.join(arguments)}` failed: read its message above")


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


def _table(record: dict, options: argparse.Namespace) -> str:
    rows, (first, second) = record["rows"], options.blocks
    lines = [
        f"# {first} against {second}: {options.recipe}, {options.steps:,} updates a run",
        "",
        f"`{record['command']}` at commit {record['commit']}.",
        "",
        "| block | seed | tokenized BLEU | sacreBLEU | chrF | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for block in options.blocks:
        mine = [row for row in rows if row["block"] == block]
        lines += [
            f"| {block} | {row['seed']} | {row['tokenized_bleu']:.2f} | {row['bleu']:.2f} "
            f"| {row['chrf']:.2f} | {row['training_seconds'] / 60:.1f} |"
            for row in mine
        ]
        scores = [row["tokenized_bleu"] for row in mine]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        lines.append(f"| {block} | mean | **{statistics.mean(scores):.2f}** ± {spread:.2f} | | | |")
    lines += ["", f"| seed | {second} - {first} | 95% interval | p |", "|---|---|---|---|"]
    lines += [
        f"| {test['seed']} | {test['difference']:+.2f} "
        f"| {test['interval'][0]:+.2f} to {test['interval'][1]:+.2f} | {test['p_value']:.3f} |"
        for test in record["bootstrap"]
    ]
    signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in rows}
    lines += [""] + [f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures)]
    lines += ["", f"![validation loss]({options.name}.png)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
