"""The command `compare`, which checks the arms, trains missing runs, and writes the report."""

import argparse
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from experiments import studies
from experiments.compare import choices
from experiments.compare.arms import Arm, recipes_of_tasks
from experiments.compare.probes import PROBES
from experiments.compare.probing import Probes
from experiments.compare.report import Study, write
from experiments.compare.trainers import Trainer, trainer_class
from macaron_tf.errors import UserError, nearest
from macaron_tf.runs.pretraining import CORPUS_SETTINGS
from macaron_tf.runs.recipe import is_among, refuse_argument_settings, settings_of
from macaron_tf.training import Diverged

QUICK = (
    "transformer={recipe}",
    "macaron={recipe}:model.block=macaron",
    "full-steps={recipe}:model.block=macaron,"
    "model.scheme=channels width 1/2, tokens, channels width 1/2",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `compare`: trains missing runs, then writes the report."""
    options.tuning_seeds, out = _tuning_seeds(options), pathlib.Path(options.out)
    arms = _parse_arms(options)
    trainer = (Probes if options.probes is not None else trainer_class(arms[0]))(options)
    _check_flags(trainer, arms)
    _check_data(trainer, arms)
    trainer.prepare({arm.name: trainer.recipe(arm) for arm in arms}, out)
    if "parameters" in options.equal:
        arms = choices.equalize_parameters(trainer, arms)
    options.jobs = options.jobs or (1 if tf.config.list_physical_devices("GPU") else 2)
    timings, tunings = [], []
    if "time" in options.equal:
        arms, timings = choices.equalize_time(trainer, arms, out, options.jobs)
    if "flops" in options.equal:
        arms, timings = choices.equalize_flops(trainer, arms, out, options.jobs)
    if options.rates:
        train = functools.partial(_train_all, trainer, seeds=options.tuning_seeds, is_tuning=True)
        arms, tunings = choices.tune_rates(trainer, arms, options.rates, train)
    results, rows = _train_all(trainer, arms, options.seeds), []
    for arm in arms:
        count = trainer.parameters(results[arm, options.seeds[0]]["run"])
        fields = {**dataclasses.asdict(arm), "arm": arm.name, "parameters": count}
        rows += [{**fields, "seed": seed, **results[arm, seed]} for seed in options.seeds]
    write(Study(trainer, arms, rows, timings, tunings))


def _tuning_seeds(options: argparse.Namespace) -> list[int]:
    """Returns the seeds of the runs that select the best rate, by default the smallest other."""
    tuning_seeds = options.tuning_seeds
    if tuning_seeds and not options.rates:
        raise UserError("--tuning-seeds has no effect without --rates: add --rates")
    if shared_seeds := set(tuning_seeds or ()).intersection(options.seeds):
        raise UserError(f"seed {min(shared_seeds)} is in both --tuning-seeds and --seeds")
    smallest = next(seed for seed in itertools.count() if seed not in options.seeds)
    return tuning_seeds or ([smallest] if options.rates else [])


def _train_all(
    trainer: Trainer, arms: Sequence[Arm], seeds: Sequence[int], is_tuning: bool = False
) -> dict[tuple[Arm, int], dict | None]:
    """Trains each arm with each seed, and returns the results of all runs; see `Trainer.train`.

    Seeds follow each other, so that after an interruption all arms have the earlier seeds' results.
    A run that diverges raises `Diverged` or, with `is_tuning`, has the results `None`.
    """
    options, pairs = trainer.options, list(itertools.product(seeds, arms))
    out = pathlib.Path(options.out)
    for seed, arm in pairs:
        trainer.check(arm, seed, out / f"{arm.label}-{seed}")

    def train(arm: Arm, seed: int) -> dict | None:
        name = f"{arm.label}-{seed}"
        log = out / "logs" / f"{name}.log" if options.jobs > 1 else None
        try:
            return trainer.train(arm, seed, out / name, log)
        except Diverged as error:
            if not is_tuning:
                raise
            print(error, flush=True)
            return None

    prefix = "tuning: " if is_tuning else ""
    tasks = {
        f"{prefix}{arm.label}, seed {seed}": functools.partial(train, arm, seed)
        for seed, arm in pairs
    }
    rows = studies.run_tasks(options.jobs, tasks)
    return {(arm, seed): row for (seed, arm), row in zip(pairs, rows, strict=True)}


def _parse_arms(options: argparse.Namespace) -> list[Arm]:
    """Parses and checks the arms, which are recipes or, with `--tasks`, starts on each task."""
    quick_recipe = "gpt_quick" if options.probes is None else "gpt_probe"
    quick, tasks = [text.format(recipe=quick_recipe) for text in QUICK], options.tasks
    texts, recipes = options.arms or quick, recipes_of_tasks(tasks)
    arms = [Arm.of_start(text, recipe) for recipe in recipes for text in texts]
    arms = arms or _with_recipes([*map(Arm.parse, texts)], options, quick[0])
    first_class = trainer_class(arms[0])
    if len(arms) < 2 and not tasks:
        raise UserError(f"{texts[0]!r} is the only arm: give a second arm")
    for arm in arms:
        if [other.label for other in arms].count(arm.label) > 1:
            raise UserError(f"two arms are called {arm.label}: give them names, as NAME=...")
        if (other_class := trainer_class(arm)) is not first_class:
            both = f"{arms[0].name} and {arm.name} have recipes of different kinds"
            raise UserError(f"{both}, {first_class.kind} and {other_class.kind}")
    if options.probes is None:
        return arms
    probes = options.probes or PROBES
    return [arm.changed(task=probe) for probe in probes for arm in arms]


def _with_recipes(arms: list[Arm], options: argparse.Namespace, quick: str) -> list[Arm]:
    """Gives arms that are only a block the recipe and settings of the first arm that has a recipe.

    If no arm has one, it is `quick`, a small Transformer, which also becomes the first arm if none
    has its name. Except on probes, all arms then read `homeassistant:en`, a text that pip fetches,
    unless an option chooses another.
    """
    first = next((arm for arm in arms if arm.recipe), None)
    if first is None:
        first = Arm.parse(quick)
        data = "the text of your options" if options.probes is None else "probes"
        chosen = any(setting.startswith("data.sources=") for setting in options.set)
        if not (chosen or options.corpus or options.data_dir or options.probes is not None):
            data = "homeassistant:en"
            options.set = [*options.set, f"data.sources={data}"]
        print(
            f"no recipe is named: {', '.join(arm.name for arm in arms)} against the Transformer in "
            f"{first.recipe}, on {data}, with seeds {' '.join(map(str, options.seeds))}",
            flush=True,
        )
        arms = arms if first.name in (arm.name for arm in arms) else [first, *arms]
    return [arm if arm.recipe else first.changed(*arm.settings, name=arm.name) for arm in arms]


def _check_flags(trainer: Trainer, arms: Sequence[Arm]) -> None:
    """Raises a `UserError` if a flag such as `--rates` conflicts with a setting of an arm.

    The first arm, the baseline, may set `training.max_steps` even with `--equal time` or `flops`.
    """
    options, budgets = trainer.options, [f"--equal {name}" for name in ("time", "flops")]
    budgets = [budget for budget in budgets if budget.split()[1] in options.equal]
    if len(budgets) > 1:
        raise UserError(f"{' and '.join(budgets)} both choose the updates of an arm: leave one out")
    flags = {
        "training.seed": "--seeds",
        "training.learning_rate": options.rates and "--rates",
        "model.feed_forward_dim": "parameters" in options.equal and "--equal parameters",
        "training.max_steps": budgets and budgets[0],
    }
    flags = {path: flag for path, flag in flags.items() if flag}
    replaced = {path: flag for path, flag in flags.items() if not flag.startswith("--equal")}
    refuse_argument_settings(options.set, replaced)
    unsuitable = [flag for flag in flags.values() if flag not in ("--seeds", "--rates")]
    if unsuitable and not trainer.sizes:
        kind = trainer.kind
        raise UserError(f"{unsuitable[0]} does not apply to {kind}: leave {unsuitable[0]} out")
    for arm, (path, flag) in itertools.product(arms, flags.items()):
        if arm.sets(path) and not (path == "training.max_steps" and arm is arms[0]):
            raise UserError(f"{arm.name} sets {path}, but {flag} sets it too: leave one out")


def _check_data(trainer: Trainer, arms: Sequence[Arm]) -> None:
    """Raises a `UserError` if the data settings of an arm and of its task's first arm differ.

    They may differ at the paths of `--differ` and below and, with `--corpus`, in corpus and
    vocabulary.
    """
    differ, recipes = trainer.options.differ, {arm: trainer.recipe(arm) for arm in arms}
    paths = [path for recipe in recipes.values() for path, *_ in settings_of(recipe)]
    for path in differ:
        if not any(is_among(known, [path]) and is_among(known, trainer.data) for known in paths):
            hint = nearest(path, paths)
            raise UserError(f"--differ {path} is not a setting of the training data{hint}")
    # With --corpus, the corpus determines these settings.
    corpus_paths = CORPUS_SETTINGS if trainer.options.corpus else ()
    allowed = *differ, *(f"{path}." for path in differ), *corpus_paths
    for arm, recipe in recipes.items():
        first = next(other for other in arms if other.task == arm.task)
        for path, (first_value, value) in recipes[first].differences(recipe).items():
            if is_among(path, trainer.data) and not is_among(path, allowed):
                values = f"{arm.name} has {path}={value!r}, {first.name} {first_value!r}"
                raise UserError(f"{values}: give --differ {path}")
