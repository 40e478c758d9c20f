"""Two blocks at equal parameters and an equal budget of updates: the paper's table 1 in small.

    python -m experiments.compare_blocks --data-dir DIR

trains a recipe with each block and each seed (about 15 minutes a run on two cores), averages the
last checkpoints, translates the validation split with the recipe's beam search, and writes
experiments/results/NAME.md, .json and .png: BLEU by seed, mean and standard deviation, and a
paired bootstrap for each seed. Runs that are complete are not trained again.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from experiments import recipes
from experiments.figures import loss_curves
from macaron_tf.data.files import write_aside
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.evaluation import TranslationMetric, paired_bootstrap
from macaron_tf.training.reporters import read_lines


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, then writes the table."""
    options = _parse(arguments)
    recipe = recipes.load(options.recipe)
    size = recipe.model.rpartition("_")[2]
    rows = []
    for seed in options.seeds:
        for block in options.blocks:
            run = pathlib.Path(options.runs) / f"{block}-{seed}"
            rows.append({"block": block, "seed": seed, **_train_and_score(options, run, size)})
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
    return parser.parse_args(arguments)


def _train_and_score(options: argparse.Namespace, run: pathlib.Path, size: str) -> dict:
    """One run by the same commands that a person would type, then what `evaluate` wrote."""
    block, _, seed = run.name.rpartition("-")
    settings = [
        f"model={block}_{size}",
        f"training.seed={seed}",
        f"training.max_steps={options.steps}",
        f"training.warmup_steps={options.warmup}",
        *options.set,
    ]
    data = ["--data-dir", options.data_dir] if options.data_dir else []
    scores = run / "scores"
    if not scores.is_dir():
        chosen = [word for setting in settings for word in ("--set", setting)]
        _translate("train", options.recipe, str(run), *data, *chosen)
        _translate("average", str(run))
        _translate("evaluate", str(run), *data)
    record = json.loads(next(scores.glob("*.json")).read_text(encoding="utf-8"))
    seconds = read_lines(run / "timing.jsonl")[-1]["seconds"]
    return {**record, "training_seconds": round(seconds, 1)}


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
    return {"seed": seed, **compared.as_dict()}


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
