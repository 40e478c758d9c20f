"""Two blocks at equal parameters and an equal budget of updates: the paper's table 1 in small.

    python -m experiments.compare_blocks --data-dir DIR
    python -m experiments.compare_blocks --data-dir DIR --name multi30k_schemes \\
        --schemes 'channels/2, tokens, channels/2' 'channels width 1/2, tokens, channels width 1/2'

trains a recipe with each block, or its own block with each scheme, and each seed (about 15 minutes
a run on two cores), averages the last checkpoints, translates the validation split with the
recipe's beam search, and writes experiments/results/NAME.md, .json and .png: BLEU by seed, mean and
standard deviation, and a paired bootstrap for each seed. Runs that are complete are not trained
again; a run of other settings in the same folder is refused. The second scheme gets the
`feed_forward_dim` at which its model has as many parameters as the first one's.
"""

import argparse
import dataclasses
import json
import pathlib
import re

from experiments import command_line as cli
from experiments import registry, studies
from experiments.translate.run import TranslationRecipe
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric, paired_bootstrap
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.progress import read_lines

# Settings that have options of their own; --set of one would belie the table.
_OWN = ("training.seed=", "training.max_steps=", "training.warmup_steps=")
_BLOCKS = ("macaron", "transformer")
_TEXT = ("hypotheses", "references", "metric", "decoding", "precisions")


def run(options: argparse.Namespace) -> None:
    """Trains missing runs, then writes the table and the figure."""
    for setting in options.set:
        if setting.startswith((*_OWN, "model=", "model.scheme=")):
            raise UserError(
                f"--set {setting}: give --blocks, --schemes, --seeds, --steps or --warmup instead"
            )
    compared, rows = _compared(options), []
    for seed in options.seeds:
        for block, chosen in compared.items():
            run = pathlib.Path(options.runs) / f"{re.sub('[^a-z0-9_]+', '-', block)}-{seed}"
            values = (seed, options.steps, options.warmup)
            settings = [f"{name}{value}" for name, value in zip(_OWN, values, strict=True)]
            row = _train_and_score(options, run, [*settings, *chosen])
            rows.append({"block": block, "seed": seed, **row})
    out = pathlib.Path(options.results)
    tests = [_bootstrap(pair, seed) for seed, pair in studies.grouped(rows, "seed").items()]
    kept = [{k: v for k, v in row.items() if k not in _TEXT} for row in rows]
    first, second = compared
    title = f"{first} against {second}: {options.recipe}, {options.steps:,} updates a run"
    lines = _report(kept, tests, [first, second])
    if options.schemes:
        lines += [
            "",
            *(f"- {block}: {chosen[-1]}" for block, chosen in compared.items()),
        ]
    record = {"rows": kept, "bootstrap": tests}
    studies.write(out, options.name, "compare_blocks", options, title, lines, **record)
    panels = {
        label: studies.curves(rows, "block", "step", metric)
        for metric, label in (("loss", "loss (smoothed, nats a token)"), ("bleu", "greedy BLEU"))
    }
    studies.mean_curves(panels, out / f"{options.name}.png", "updates", "validation")


def _compared(options: argparse.Namespace) -> dict[str, list[str]]:
    """The settings of the two blocks or schemes, by name; a scheme's last is its width."""
    if not options.schemes:
        size = registry.load(options.recipe, TranslationRecipe).model.rpartition("_")[2]
        blocks = options.blocks or _BLOCKS
        if len(set(blocks)) < 2:
            raise UserError(f"--blocks: give two different blocks, not {blocks[0]} twice")
        return {block: [f"model={block}_{size}", *options.set] for block in blocks}
    if options.blocks:
        raise UserError("--blocks and --schemes: give one of them")
    first, second = options.schemes
    configs = []
    for scheme in options.schemes:
        settings = [*options.set, f"model.scheme={scheme}"]
        recipe = registry.load(options.recipe, TranslationRecipe, settings)
        configs.append(recipe.model_config())
    if configs[0].splittings == configs[1].splittings:
        raise UserError(f"--schemes: {second!r} spells the same operators as {first!r}")
    widths = (configs[0].feed_forward_dim, _equal_width(*configs))
    return {
        scheme: [*options.set, f"model.scheme={scheme}", f"model.feed_forward_dim={width}"]
        for scheme, width in zip(options.schemes, widths, strict=True)
    }


def _equal_width(one: EncoderDecoderConfig, other: EncoderDecoderConfig) -> int:
    """The `feed_forward_dim` of another scheme at which it has the parameters of the first one."""

    def count(config: EncoderDecoderConfig, factor: int = 1) -> int:
        width = factor * config.feed_forward_dim
        network = EncoderDecoder(dataclasses.replace(config, feed_forward_dim=width))
        network.build()
        return network.count_params()

    # Parameters are linear in the width.
    width, missing = other.feed_forward_dim, count(one) - count(other)
    slope = (count(other, 2) - count(other)) / width
    if missing and slope:
        width = round(width + missing / slope)
    if width < 1 or (missing and not slope):
        raise UserError(
            f"--schemes: no feed_forward_dim gives {other.scheme!r} as many parameters as "
            f"{one.scheme!r} has: give the first one a larger model.feed_forward_dim"
        )
    return width


def _train_and_score(options: argparse.Namespace, run: pathlib.Path, settings: list[str]) -> dict:
    """Trains and scores one run by the commands that a person would type; its scores."""
    recipe = studies.planned(options.recipe, run, settings, TranslationRecipe)
    data = studies.flags("--data-dir", options.data_dir)
    # A folder of its own: RUN/scores may hold a person's evaluations of other text.
    output = run / "comparison"
    found = _own_scores(run, output, recipe)
    if not found:
        chosen = studies.flags("--set", *settings)
        scored = ["--checkpoint", "average", "--output", str(output)]
        studies.command("translate", "train", options.recipe, str(run), *data, *chosen)
        studies.command("translate", "average", str(run))
        studies.command("translate", "evaluate", str(run), *scored, *data)
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


def _bootstrap(pair: list[dict], seed: int) -> dict:
    first, second = pair
    metric = TranslationMetric(**first["metric"])
    texts = first["hypotheses"], second["hypotheses"], first["references"]
    return {"seed": seed, **dataclasses.asdict(paired_bootstrap(*texts, metric))}


def _report(rows: list[dict], tests: list[dict], blocks: list[str]) -> list[str]:
    """Lines of Markdown: a run a row, the mean of each block, and the tests of each seed."""
    lines = []
    for block, mine in studies.grouped(rows, "block").items():
        for row in mine:
            scores = [f"{row[metric]:.2f}" for metric in ("tokenized_bleu", "bleu", "chrf")]
            lines.append((block, str(row["seed"]), *scores, f"{row['training_seconds'] / 60:.1f}"))
        mean = studies.mean_of(mine, "tokenized_bleu", 2)
        lines.append((block, "mean", f"**{mean}**", "", "", ""))
    head = ("block", "seed", "tokenized BLEU", "sacreBLEU", "chrF", "minutes")
    difference, paired = f"{blocks[1]} - {blocks[0]}", []
    for test in tests:
        least, most = test["interval"]
        cells = (f"{test['difference']:+.2f}", f"{least:+.2f} to {most:+.2f}")
        paired.append((str(test["seed"]), *cells, f"{test['p_value']:.3f}"))
    signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in rows}
    return [
        *studies.table(head, lines),
        "",
        *studies.table(("seed", difference, "95% interval", "p"), paired),
        "",
        *(f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures)),
    ]


main = cli.single_program(
    "experiments.compare_blocks",
    __doc__,
    "experiments.compare_blocks:run",
    cli.argument("--recipe", "default %(default)s", default="multi30k_macaron_tiny"),
    cli.argument("--blocks BLOCK", "default macaron transformer", nargs=2),
    cli.argument("--schemes SCHEME", "two schemes of the recipe's block instead", nargs=2),
    cli.count("--seeds N", "default 1 2 3", [1, 2, 3], least=0, nargs="+"),
    cli.count("--steps N", "updates a run (default %(default)s)", 1500),
    cli.count("--warmup N", "of them warm-up (default %(default)s)", 400, least=0),
    cli.DATA_DIR,
    cli.argument("--runs DIR", "of the trainings (default %(default)s)", default="runs/blocks"),
    cli.argument("--results DIR", "of the table (%(default)s)", default="experiments/results"),
    cli.argument("--name", "the table's file name (%(default)s)", default="multi30k_blocks"),
    cli.settings("label_smoothing=0.2, as for `translate train`"),
)

if __name__ == "__main__":
    raise SystemExit(main())
