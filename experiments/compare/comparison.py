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
from experiments.compare.kinds import Arm, Kind, kind_of
from experiments.compare.report import Study, write
from experiments.recipe import Recipe, is_among, refuse_given, settings_of
from macaron_tf.data.tasks.definitions import OWN_TASKS, TASKS
from macaron_tf.errors import UserError, nearest
from macaron_tf.plug_ins import is_import_path
from macaron_tf.training import Diverged

QUICK = (
    "transformer=gpt_quick",
    "macaron=gpt_quick:model.block=macaron",
    "full-steps=gpt_quick:model.block=macaron,"
    "model.scheme=channels width 1/2, tokens, channels width 1/2",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `compare`: trains missing runs, then writes the report."""
    tuning_seeds, chosen = _tuning_seeds(options), _chosen(options)
    both = {path: flag for path, flag in chosen.items() if flag in ("--widths", "--rates")}
    refuse_given(options.set, {"training.seed": "--seeds", **both})
    out, arms = pathlib.Path(options.out), _arms(options.arms or QUICK, options.set)
    kind = kind_of(arms[0])(options)
    choices.check_arms(kind, arms, chosen)
    kind.leave_out(arms)
    recipes = {arm.name: kind.recipe(arm) for arm in arms}
    _check_data(kind, recipes, options.differ)
    kind.prepare(recipes, out)
    groups = [arms]
    if options.widths:
        groups = [[choices.at_width(kind, arm, width) for arm in arms] for width in options.widths]
    if "parameters" in options.equal:
        groups = [
            [first, *(choices.with_parameters(kind, arm, first) for arm in others)]
            for first, *others in groups
        ]
    for group in groups:
        _check_different({arm.name: kind.recipe(arm) for arm in group})
    options.jobs = options.jobs or (1 if tf.config.list_physical_devices("GPU") else 2)
    timed, tuned = [], []
    if "time" in options.equal:
        groups, timed = choices.with_time(kind, groups, out, options.jobs)
    arms = list(itertools.chain.from_iterable(groups))
    if options.rates:
        arms, tuned = choices.with_rates(
            kind, arms, options.rates, functools.partial(_train_all, kind, seeds=tuning_seeds)
        )
    trained, rows = _train_all(kind, arms, options.seeds, judged=True), []
    for arm in arms:
        mine = [trained[arm, seed] for seed in options.seeds]
        parameters = kind.run_class.open(mine[0]["run"]).build_network().count_params()
        about = {**dataclasses.asdict(arm), "arm": arm.name, "parameters": parameters}
        del about["name"]
        rows += [{**about, "seed": n, **row} for n, row in zip(options.seeds, mine, strict=True)]
    write(Study(kind, arms, rows, timed, tuned, tuning_seeds), options)


def _tuning_seeds(options: argparse.Namespace) -> list[int]:
    given = options.tuning_seeds
    if given and not options.rates:
        raise UserError(
            "--tuning-seeds has no effect without --rates: add --rates, or leave --tuning-seeds out"
        )
    if both := set(given or ()).intersection(options.seeds):
        raise UserError(
            f"seed {min(both)} is in both --tuning-seeds and --seeds: remove the seed from one of "
            "these flags"
        )
    return given or [next(seed for seed in itertools.count() if seed not in options.seeds)]


def _chosen(options: argparse.Namespace) -> dict[str, str]:
    """Collects the settings that flags such as `--widths` and `--rates` determine for each arm.

    Returns:
        A dict mapping the path of a setting to the flag that determines the setting.
    """
    found = {
        "model.hidden_dim": options.widths and "--widths",
        "model.feed_forward_dim": "parameters" in options.equal and "--equal parameters",
        "training.max_steps": "time" in options.equal and "--equal time",
        "training.learning_rate": options.rates and "--rates",
    }
    return {path: flag for path, flag in found.items() if flag}


def _train_all(
    kind: Kind, arms: Sequence[Arm], seeds: Sequence[int], judged: bool = False
) -> dict[tuple[Arm, int], dict | None]:
    """Trains each arm with each seed, and returns the results of all runs.

    All arms are trained with one seed before the next seed begins. After an interruption, the
    earlier seeds therefore have results for all arms.

    Args:
        kind: type of training.
        arms: the arms.
        seeds: seeds of the runs.
        judged: whether these are the compared runs, rather than runs that tune the learning rate.

    Returns:
        A dict mapping (arm, seed) to the results of the run; see `Kind.row`. The results are `None`
        if the run diverged and `judged` is false.

    Raises:
        Diverged: a run diverged and `judged` is true.
    """
    options = kind.options
    out, pairs = pathlib.Path(options.out), list(itertools.product(seeds, arms))
    for seed, arm in pairs:
        kind.check(arm, seed, out / f"{arm.label}-{seed}")

    def train(arm: Arm, seed: int) -> dict | None:
        name = f"{arm.label}-{seed}"
        log = out / "logs" / f"{name}.log" if options.jobs > 1 else None
        try:
            row = kind.train(arm, seed, out / name, log)
        except Diverged as error:
            if judged:
                raise
            print(error, flush=True)
            return None
        return row | kind.more(out / name, log) if judged else row

    words = "" if judged else "tuning: "
    tasks = {
        f"{words}{arm.label}, seed {seed}": functools.partial(train, arm, seed)
        for seed, arm in pairs
    }
    rows = studies.at_once(options.jobs, tasks)
    return {(arm, seed): row for (seed, arm), row in zip(pairs, rows, strict=True)}


def _arms(words: Sequence[str], settings: Sequence[str] = ()) -> list[Arm]:
    """Parses and checks the arms of a comparison.

    Args:
        words: arms as written on the command line.
        settings: values of `--set`. If `--set` is used, the error message about an unknown arm such
            as `training.max_steps=9` suggests to repeat the flag `--set`.

    Raises:
        UserError: there are fewer than two arms, two arms have the same name or recipes of
            different kinds, or an arm sets `training.seed`.
    """
    arms = [Arm.parse(text) for text in words]
    for text, arm in zip(words, arms, strict=True):
        known = arm.recipe in (*registry.FAMILY_OF, *TASKS, *OWN_TASKS) or is_import_path(
            arm.recipe
        )
        if settings and "=" in text and not known:
            raise UserError(
                f"{text!r} is not an arm, because no recipe is called {arm.recipe!r}"
                f"{nearest(arm.recipe, registry.FAMILY_OF)}: correct the name or, for a setting, "
                f"repeat the flag, as in --set {settings[-1]} --set {text}"
            )
    if len(arms) < 2:
        raise UserError(
            f"{words[0]!r} is the only arm, but a comparison needs at least two arms: give "
            "another arm"
        )
    for arm in arms:
        if [one.name for one in arms].count(arm.name) > 1:
            raise UserError(
                f"two arms are called {arm.name}: give one of these arms another name, as in "
                f"NAME={arm.recipe}"
            )
        if arm.sets("training.seed"):
            raise UserError(
                f"{arm.name} sets training.seed, but --seeds chooses the seeds of all arms: "
                "remove training.seed from the arm"
            )
        if (one := kind_of(arms[0])) is not (other := kind_of(arm)):
            names = (kind.run_class.recipe_class.kind for kind in (one, other))
            raise UserError(
                f"{arms[0].name} and {arm.name} have recipes of different kinds, "
                f"{' and '.join(names)}: give arms with recipes of the same kind"
            )
    return arms


def _check_data(kind: Kind, recipes: dict[str, Recipe], differ: Sequence[str]) -> None:
    """Raises a `UserError` if two arms have different settings of training or evaluation data.

    Args:
        kind: type of training.
        recipes: dict mapping the name of an arm to its recipe.
        differ: paths of data settings in which arms may differ. The function also raises if a path
            is not a data setting.
    """
    first, *others = recipes
    known = [path for recipe in recipes.values() for path, *_ in settings_of(recipe)]
    for path in differ:
        if not any(is_among(one, [path]) and is_among(one, kind.data) for one in known):
            raise UserError(
                f"--differ {path} is not a setting of the training data: give another "
                f"setting{nearest(path, known)}"
            )
    # With --corpus, the corpus determines these settings.
    given = ("corpus.", "vocabulary.") if kind.options.corpus else ()
    for name in others:
        for path, (one, other) in recipes[first].differences(recipes[name]).items():
            if is_among(path, kind.data) and not is_among(path, (*differ, *given)):
                raise UserError(
                    f"{name} has {path}={other!r}, but {first} has {path}={one!r}: set both to "
                    f"the same value, or give --differ {path} to compare arms with different "
                    "training data"
                )


def _check_different(recipes: dict[str, Recipe]) -> None:
    """Raises a `UserError` if two arms have the same model and the same settings."""

    def operators(recipe: Recipe) -> tuple:
        config = recipe.model_config()
        return dataclasses.replace(config, scheme=None), config.splittings

    for (first, one), (second, other) in itertools.combinations(recipes.items(), 2):
        named = one.differences(other).keys() <= {"model", "model_options"}
        if named and operators(one) == operators(other):
            raise UserError(
                f"{second} has the same model and settings as {first}: change or remove one of "
                "these arms"
            )
