"""The command `compare`, which checks the arms, trains missing runs, and writes the report."""

import argparse
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from experiments import registry, studies
from experiments.compare import choices
from experiments.compare.arms import Arm, Trainer, recipes_of_tasks, task_of
from experiments.compare.report import Study, write
from experiments.compare.trainers import Finetuning, trainer_class
from macaron_tf.errors import UserError, nearest
from macaron_tf.io.hub import HUB
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.runs.recipe import Recipe, is_among, refuse_argument_settings, settings_of
from macaron_tf.training import Diverged
from macaron_tf.training.locations import LIBRARIES

QUICK = (
    "transformer=gpt_quick",
    "macaron=gpt_quick:model.block=macaron",
    "full-steps=gpt_quick:model.block=macaron,"
    "model.scheme=channels width 1/2, tokens, channels width 1/2",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `compare`: trains missing runs, then writes the report."""
    tuning_seeds, flags = _tuning_seeds(options), _flags_by_path(options)
    swept_flags = {path: flag for path, flag in flags.items() if flag in ("--widths", "--rates")}
    refuse_argument_settings(options.set, {"training.seed": "--seeds", **swept_flags})
    out = pathlib.Path(options.out)
    arms = _parse_arms(options.arms or QUICK, options.set, options.tasks)
    trainer = trainer_class(arms[0])(options)
    choices.check_arms(trainer, arms, flags)
    recipes = {arm.name: trainer.recipe(arm) for arm in arms}
    _check_data(trainer, recipes, options.differ)
    trainer.prepare(recipes, out)
    groups = [arms]
    if arms[0].task is not None:
        groups = [
            [dataclasses.replace(arm, recipe=recipe, task=task_of(recipe)) for arm in arms]
            for recipe in recipes_of_tasks(options.tasks)
        ]
        for group in groups[1:]:
            _check_data(trainer, {arm.name: trainer.recipe(arm) for arm in group}, options.differ)
    if options.widths:
        groups = [
            [choices.scale_to_width(trainer, arm, width) for arm in arms]
            for width in options.widths
        ]
    if "parameters" in options.equal:
        groups = [
            [first, *(choices.equalize_parameters(trainer, arm, first) for arm in others)]
            for first, *others in groups
        ]
    for group in groups:
        _check_different({arm.name: trainer.recipe(arm) for arm in group})
    options.jobs = options.jobs or (1 if tf.config.list_physical_devices("GPU") else 2)
    timings, tunings = [], []
    if "time" in options.equal:
        groups, timings = choices.equalize_time(trainer, groups, out, options.jobs)
    arms = list(itertools.chain.from_iterable(groups))
    if options.rates:
        arms, tunings = choices.tune_rates(
            trainer, arms, options.rates, functools.partial(_train_all, trainer, seeds=tuning_seeds)
        )
    results, rows = _train_all(trainer, arms, options.seeds, is_compared=True), []
    for arm in arms:
        arm_rows = [results[arm, seed] for seed in options.seeds]
        parameters = trainer.run_class.open(arm_rows[0]["run"]).build_network().count_params()
        arm_fields = {**dataclasses.asdict(arm), "arm": arm.name, "parameters": parameters}
        del arm_fields["name"]
        pairs = zip(options.seeds, arm_rows, strict=True)
        rows += [{**arm_fields, "seed": seed, **row} for seed, row in pairs]
    write(Study(trainer, arms, rows, timings, tunings, tuning_seeds), options)


def _tuning_seeds(options: argparse.Namespace) -> list[int]:
    tuning_seeds = options.tuning_seeds
    if tuning_seeds and not options.rates:
        raise UserError("--tuning-seeds has no effect without --rates: add --rates")
    if shared_seeds := set(tuning_seeds or ()).intersection(options.seeds):
        raise UserError(
            f"seed {min(shared_seeds)} is in both --tuning-seeds and --seeds: leave one out"
        )
    return tuning_seeds or [next(seed for seed in itertools.count() if seed not in options.seeds)]


def _flags_by_path(options: argparse.Namespace) -> dict[str, str]:
    """Maps paths of settings to flags such as `--widths` and `--rates` that determine them."""
    flags = {
        "model.hidden_dim": options.widths and "--widths",
        "model.feed_forward_dim": "parameters" in options.equal and "--equal parameters",
        "training.max_steps": "time" in options.equal and "--equal time",
        "training.learning_rate": options.rates and "--rates",
    }
    return {path: flag for path, flag in flags.items() if flag}


def _train_all(
    trainer: Trainer, arms: Sequence[Arm], seeds: Sequence[int], is_compared: bool = False
) -> dict[tuple[Arm, int], dict | None]:
    """Trains each arm with each seed, and returns the results of all runs.

    The runs of all arms with one seed start before the runs of the next seed. After an
    interruption, the earlier seeds therefore have results for all arms. With `is_compared`, the
    results (see `Trainer.row`) include those of `Trainer.extra_scores`, and a run that diverges
    raises `Diverged`. Without `is_compared`, for runs that tune the learning rate, a run that
    diverges has the results `None`.
    """
    options = trainer.options
    out, pairs = pathlib.Path(options.out), list(itertools.product(seeds, arms))
    for seed, arm in pairs:
        trainer.check(arm, seed, out / f"{arm.label}-{seed}")

    def train(arm: Arm, seed: int) -> dict | None:
        name = f"{arm.label}-{seed}"
        log = out / "logs" / f"{name}.log" if options.jobs > 1 else None
        try:
            row = trainer.train(arm, seed, out / name, log)
        except Diverged as error:
            if is_compared:
                raise
            print(error, flush=True)
            return None
        return row | trainer.extra_scores(out / name, log) if is_compared else row

    prefix = "" if is_compared else "tuning: "
    tasks = {
        f"{prefix}{arm.label}, seed {seed}": functools.partial(train, arm, seed)
        for seed, arm in pairs
    }
    rows = studies.run_tasks(options.jobs, tasks)
    return {(arm, seed): row for (seed, arm), row in zip(pairs, rows, strict=True)}


def _parse_arms(
    texts: Sequence[str], settings: Sequence[str] = (), tasks: Sequence[str] = ()
) -> list[Arm]:
    """Parses and checks the arms of a comparison.

    With `tasks`, the arms may be pre-trained models. The function returns their arms for the first
    task. If `--set` is used, the error message about an unknown arm such as `training.max_steps=9`
    suggests repeating the flag `--set`.
    """
    is_recipe = [_is_recipe(Arm.split(text)[1]) for text in texts]
    if tasks and not any(is_recipe):
        first, *_ = recipes_of_tasks(tasks)
        arms = [Arm.of_start(text, first) for text in texts]
    else:
        arms = [Arm.parse(text) for text in texts]
    for text, arm, known in zip(texts, arms, is_recipe, strict=True):
        if settings and "=" in text and not known and arm.task is None:
            raise UserError(
                f"{text!r} is not an arm, because no recipe is called {arm.recipe!r}"
                f"{nearest(arm.recipe, registry.FAMILY_OF)}; for a setting write --set {text}"
            )
    if len(arms) < 2 and arms[0].task is None:
        raise UserError(f"{texts[0]!r} is the only arm: give a second arm")
    for arm in arms:
        if [other.name for other in arms].count(arm.name) > 1:
            raise UserError(f"two arms are called {arm.name}: write NAME={arm.recipe}")
        if tasks and arm.task is None and trainer_class(arm) is Finetuning:
            raise UserError(f"{arm.name} names a task, as well as --tasks: leave one out")
        if arm.sets("training.seed"):
            raise UserError(f"{arm.name} sets training.seed: give --seeds instead")
        if (first_class := trainer_class(arms[0])) is not (other_class := trainer_class(arm)):
            names = (cls.run_class.recipe_class.kind for cls in (first_class, other_class))
            raise UserError(
                f"{arms[0].name} and {arm.name} have recipes of different kinds, "
                f"{' and '.join(names)}: give recipes of one kind"
            )
    return arms


def _is_recipe(name: str) -> bool:
    is_location = name.partition(":")[0] in (*LIBRARIES, HUB)
    is_known = name.partition(":")[0] in registry.FAMILY_OF
    return is_known or (is_import_path(name) and not is_location)


def _check_data(trainer: Trainer, recipes: dict[str, Recipe], differ: Sequence[str]) -> None:
    """Raises a `UserError` if the data settings of an arm and of the first arm differ.

    With `--corpus`, the settings of corpus and vocabulary may differ, and so may the settings at
    the paths in `differ` and below them. The function also raises if a path in `differ` is not a
    data setting.
    """
    first, *others = recipes
    paths = [path for recipe in recipes.values() for path, *_ in settings_of(recipe)]
    for path in differ:
        if not any(is_among(known, [path]) and is_among(known, trainer.data) for known in paths):
            raise UserError(
                f"--differ {path} is not a setting of the training data{nearest(path, paths)}"
            )
    # With --corpus, the corpus determines these settings.
    corpus_paths = ("corpus.", "vocabulary.") if trainer.options.corpus else ()
    allowed = *differ, *(f"{path}." for path in differ), *corpus_paths
    for name in others:
        for path, (first_value, value) in recipes[first].differences(recipes[name]).items():
            if is_among(path, trainer.data) and not is_among(path, allowed):
                raise UserError(
                    f"{name} has {path}={value!r}, {first} {first_value!r}: give --differ {path}"
                )


def _check_different(recipes: dict[str, Recipe]) -> None:
    """Raises a `UserError` if two arms have the same model and the same settings."""

    def operators(recipe: Recipe) -> tuple:
        config = recipe.model_config()
        return dataclasses.replace(config, scheme=None), config.splittings

    pairs = itertools.combinations(recipes.items(), 2)
    for (first, first_recipe), (second, second_recipe) in pairs:
        same_settings = first_recipe.differences(second_recipe).keys() <= {"model", "model_options"}
        if same_settings and operators(first_recipe) == operators(second_recipe):
            raise UserError(f"{second} has the same model and settings as {first}: change one")
