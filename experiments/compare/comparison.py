"""The comparison: plans and refuses, trains what is missing, tests, writes table and figure."""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
import scipy.stats
import tensorflow as tf

from experiments import studies
from experiments.compare.kinds import Arm, Kind, kind_of
from experiments.recipe import Recipe, is_among, refuse_given, settings_of
from macaron_tf.distribution.device_memory import refuse_oversize
from macaron_tf.errors import UserError, nearest

QUICK = (
    "transformer=gpt_quick",
    "macaron=gpt_quick:model.block=macaron",
    "full-steps=gpt_quick:model.block=macaron,"
    "model.scheme=channels width 1/2, tokens, channels width 1/2",
)
BASELINE = "guessing by frequency"
_SURE = 0.05  # the p from which on nothing is decided
_NEAR = 0.1  # of the baseline: nothing but frequencies is learnt
_EQUAL = 0.01  # of the parameters
# Settings by which arms read other batches of the same text, or more of them.
_BUDGET = ("batch_size", "epochs", "training.max_steps", "training.accumulation_steps")
_TEXT = ("hypotheses", "references", "metric", "decoding", "precisions")


def run(options: argparse.Namespace) -> None:
    """Trains missing runs, then writes the table and the figure."""
    refuse_given(options.set, {"training.seed": "--seeds"})
    out, arms = pathlib.Path(options.out), _arms(options.arms or QUICK)
    kind = kind_of(arms[0])(options)
    kind.leave_out(arms)
    recipes = {arm.name: kind.recipe(arm) for arm in arms}
    _check_data(kind, recipes, options.differ)
    kind.prepare(recipes, out)
    if options.equal_parameters:
        arms = [arms[0], *(_widened(kind, arm, arms[0], recipes) for arm in arms[1:])]
    _check_different({arm.name: kind.recipe(arm) for arm in arms})
    for arm in arms:
        for seed in options.seeds:
            kind.check(arm, seed, out / f"{arm.name}-{seed}")
    options.jobs = options.jobs or (1 if tf.config.list_physical_devices("GPU") else 2)
    # Seed by seed: an interrupted comparison has every arm with the first seeds.
    work, rows = {}, []
    for seed, arm in itertools.product(options.seeds, arms):
        name = f"{arm.name}-{seed}"
        log = out / "logs" / f"{name}.log" if options.jobs > 1 else None
        work[arm.name, seed] = functools.partial(kind.train, arm, seed, out / name, log)
    named = {f"{name}, seed {seed}": task for (name, seed), task in work.items()}
    trained = dict(zip(work, studies.at_once(options.jobs, named), strict=True))
    for arm in arms:
        first = kind.run_class.open(trained[arm.name, options.seeds[0]]["run"])
        about = {"arm": arm.name, "settings": arm.settings}
        about["parameters"] = first.build_network().count_params()
        rows += [{**about, "seed": seed, **trained[arm.name, seed]} for seed in options.seeds]
    _write(kind, arms, rows, options)


def _arms(words: Sequence[str]) -> list[Arm]:
    """The arms of a command line, each with a name of its own, all of one kind."""
    arms = [Arm.parse(text) for text in words]
    if len(arms) < 2:
        raise UserError(f"{words[0]!r} is one arm: give two or more")
    for arm in arms:
        if [one.name for one in arms].count(arm.name) > 1:
            raise UserError(f"two arms are called {arm.name}: give NAME={arm.recipe}:PATH=VALUE")
        if any(setting.startswith("training.seed=") for setting in arm.settings):
            raise UserError(f"{arm.name}: leave out training.seed: --seeds are every arm's")
        if (one := kind_of(arms[0])) is not (other := kind_of(arm)):
            names = (kind.run_class.recipe_class.kind for kind in (one, other))
            raise UserError(
                f"{arms[0].name} and {arm.name} are of two kinds, {' and '.join(names)}: compare "
                "arms of one"
            )
    return arms


def _check_data(kind: Kind, recipes: dict[str, Recipe], differ: Sequence[str]) -> None:
    """Refuses arms that read or are scored on other text than the first one."""
    first, *others = recipes
    known = [path for recipe in recipes.values() for path, *_ in settings_of(recipe)]
    for path in differ:
        if not any(is_among(one, [path]) and is_among(one, kind.data) for one in known):
            raise UserError(f"--differ {path} is no setting of the text{nearest(path, known)}")
    # A corpus that is given brings its own settings.
    given = ("corpus.", "vocabulary.") if kind.options.corpus else ()
    for name in others:
        for path, (one, other) in recipes[first].differences(recipes[name]).items():
            if is_among(path, kind.data) and not is_among(path, (*differ, *given)):
                raise UserError(
                    f"{name} has {path}={other!r}, {first} {one!r}: arms read equal text; give "
                    f"both the same, or --differ {path} where that is what is compared"
                )


def _check_different(recipes: dict[str, Recipe]) -> None:
    """Refuses two arms that train the same."""

    def operators(recipe: Recipe) -> tuple:
        config = recipe.model_config()
        return dataclasses.replace(config, scheme=None), config.splittings

    for (first, one), (second, other) in itertools.combinations(recipes.items(), 2):
        named = one.differences(other).keys() <= {"model", "model_options"}
        if named and operators(one) == operators(other):
            raise UserError(f"{second} spells the same training as {first}: change one of them")


def _widened(kind: Kind, arm: Arm, first: Arm, recipes: dict[str, Recipe]) -> Arm:
    """The arm with the `feed_forward_dim` at which its model has the first one's parameters."""
    if any(setting.startswith("model.feed_forward_dim=") for setting in arm.settings):
        raise UserError(f"{arm.name}: --equal-parameters chooses model.feed_forward_dim: leave it")

    def at(width: int) -> Arm:
        setting = f"model.feed_forward_dim={width}"
        return dataclasses.replace(arm, settings=(*arm.settings, setting))

    wanted = _parameters(kind, first.name, recipes[first.name])
    width = start = recipes[arm.name].model_config().feed_forward_dim
    found = _parameters(kind, arm.name, recipes[arm.name])
    # Parameters are linear in the width, but for rounding.
    slope = (_parameters(kind, arm.name, kind.recipe(at(2 * start))) - found) / start
    if found != wanted and slope:
        width = max(round(start + (wanted - found) / slope), 1)
        found = _parameters(kind, arm.name, kind.recipe(at(width)))
    if abs(found - wanted) > _EQUAL * wanted:
        raise UserError(
            f"--equal-parameters: no feed_forward_dim gives {arm.name} as many parameters as "
            f"{first.name} has: give {first.name} a larger model.feed_forward_dim"
        )
    return at(width)


def _parameters(kind: Kind, name: str, recipe: Recipe) -> int:
    with refuse_oversize(recipe.model_name):
        network = kind.network(name, recipe)
        network.build()
    return network.count_params()


def _paired(scores: Sequence[float], first: Sequence[float], sign: int) -> dict:
    """The differences from the first arm's scores of the same seeds, their test, a verdict."""
    differences = [a - b for a, b in zip(scores, first, strict=True)]
    mean = statistics.mean(differences)
    found = {"differences": differences, "difference": mean, "p": None}
    words = {1: "higher", -1: "lower", 0: "equal"}
    agree = sum(np.sign(one) == np.sign(mean) for one in differences)
    text = f"{words[np.sign(mean)]} in {agree} of {len(differences)} seeds"
    if len(set(differences)) > 1:
        found["p"] = float(scipy.stats.ttest_rel(scores, first).pvalue)
        text += f", p = {found['p']:.3f}"
    if agree == len(differences) and found["p"] is not None and found["p"] < _SURE:
        return {**found, "verdict": f"{text}: **{'better' if sign * mean > 0 else 'worse'}**"}
    return {**found, "verdict": f"{text}: not decided"}


def _write(kind: Kind, arms: list[Arm], rows: list[dict], options: argparse.Namespace) -> None:
    out, by_arm, baseline = pathlib.Path(options.out), studies.grouped(rows, "arm"), kind.baseline()
    first, label = arms[0].name, kind.columns[kind.score][0]
    scores = {name: [row[kind.score] for row in mine] for name, mine in by_arm.items()}
    others = [arm.name for arm in arms[1:]]
    paired = {name: _paired(scores[name], scores[first], kind.sign) for name in others}
    tests = [test for name in others for test in kind.tests(by_arm[first], by_arm[name])]
    lines = [
        *_table(kind, by_arm, paired, baseline),
        "",
        *studies.table(
            (f"{label} of seed", *map(str, options.seeds)),
            ((name, *_shown(kind, mine)) for name, mine in scores.items()),
        ),
        "",
        *_bootstraps(first, tests),
        _rule(kind, first, options),
        *_about_budgets({arm.name: kind.recipe(arm) for arm in arms}),
    ]
    if baseline is not None:
        lines += ["", _about_baseline(scores, baseline)]
    lines += ["", *(f"- {arm.name}: {', '.join((arm.recipe, *arm.settings))}" for arm in arms)]
    if options.set:
        lines += [f"- all: {', '.join(map(kind.shared, options.set))}"]
    if tests:
        pairs = sorted({(row["tokenized_signature"], row["bleu_signature"]) for row in rows})
        lines += ["", *(f"Signatures: `{a}`; `{b}`." for a, b in pairs)]
    panels = {
        text: studies.curves(rows, "arm", "step", metric, "curve")
        for metric, text in kind.curves.items()
    }
    studies.mean_curves(panels, out / "compare.png", "updates", "validation")
    updates = max(row["updates"] for row in rows)
    title = f"{' against '.join([', '.join(others), first])}: {label} after {updates:,} updates"
    kept = [{key: row[key] for key in row if key not in _TEXT} for row in rows]
    record = {"rows": kept, "paired": paired, "bootstrap": tests, "baseline": baseline}
    studies.write(out, "compare", "compare", options, title, lines, **record)


def _shown(kind: Kind, scores: Sequence[float]) -> list[str]:
    _, digits, factor = kind.columns[kind.score]
    return [f"{factor * score:.{digits}f}" for score in scores]


def _table(
    kind: Kind, by_arm: dict[str, list[dict]], paired: dict[str, dict], baseline: float | None
) -> list[str]:
    """An arm a row, and the baseline."""
    first = next(iter(by_arm))
    wanted, lines = by_arm[first][0]["parameters"], []
    rows = [row for mine in by_arm.values() for row in mine]
    scores = studies.values(rows, kind.score)
    columns = {
        key: form
        for key, form in kind.columns.items()
        if key == kind.score or studies.values(rows, key) not in ([], scores)
    }
    _, digits, factor = kind.columns[kind.score]
    for name, mine in by_arm.items():
        parameters, test = mine[0]["parameters"], paired.get(name)
        more = f"{100 * (parameters / wanted - 1):+.1f}%"
        seconds, memory = (studies.values(mine, key) for key in ("seconds", "memory_mib"))
        cells = [studies.mean_of(mine, key, *form[1:]) for key, form in columns.items()]
        cells[0] = f"**{cells[0]}**"
        difference = f"{factor * test['difference']:+.{digits}f}" if test else ""
        lines.append(
            (
                name,
                f"{parameters:,}" + (f" ({more})" if more not in ("+0.0%", "-0.0%") else ""),
                f"{statistics.median(seconds):.0f}",
                f"{statistics.median(memory):,.0f}" if memory else "-",
                *cells,
                difference,
                test["verdict"] if test else "",
            )
        )
    if baseline is not None:
        empty = [""] * (len(columns) - 1)
        shown = _shown(kind, [baseline])[0]
        lines.append((BASELINE, "", "", "", shown, *empty, "", ""))
    heads = [head for head, *_ in columns.values()]
    head = ("arm", "parameters", "seconds", "MiB", *heads, f"- {first}", "verdict")
    return studies.table(head, lines)


def _bootstraps(first: str, tests: list[dict]) -> list[str]:
    if not tests:
        return []
    lines = []
    for test in tests:
        least, most = test["interval"]
        cells = (f"{test['difference']:+.2f}", f"{least:+.2f} to {most:+.2f}")
        lines.append((test["arm"], str(test["seed"]), *cells, f"{test['p_value']:.3f}"))
    head = ("paired bootstrap", "seed", f"- {first}", "95% interval", "p")
    return [*studies.table(head, lines), ""]


def _rule(kind: Kind, first: str, options: argparse.Namespace) -> str:
    """The sentences below the table."""
    jobs, more = options.jobs, "higher" if kind.sign > 0 else "lower"
    beside = f"{jobs} at once" if jobs > 1 else "one at a time"
    return (
        f"Mean ± the sample's deviation over the seeds; {more} is better. Arms are compared "
        f"seed by seed: `- {first}` is the mean difference. "
        f"Verdict: better or worse where all seeds agree and a paired t-test over them has p < "
        f"{_SURE}, else not decided; p is not corrected for the number of arms. Seconds are of a "
        f"training from start to end, validations included, {beside}; MiB is the most memory that "
        "its process held; both are medians."
    )


def _about_budgets(recipes: dict[str, Recipe]) -> list[str]:
    """A sentence about the batches that the arms read."""
    (first, one), *others = recipes.items()
    unequal = [
        f"{name} has {path}={theirs}, {first} {mine}"
        for name, other in others
        for path, (mine, theirs) in one.differences(other).items()
        if path in _BUDGET
    ]
    if unequal:
        return ["", f"**Budgets differ**: {'; '.join(unequal)}."]
    return ["", "Arms of one seed read the same batches."]


def _about_baseline(scores: dict[str, list[float]], baseline: float) -> str:
    """The meaning of the baseline, and a warning about arms that are near it."""
    text = f"{BASELINE.capitalize()}: each token by its share of the training text."
    near = [name for name, mine in scores.items() if statistics.mean(mine) > baseline - _NEAR]
    if near:
        text += (
            f" **{', '.join(near)} learnt little else: raise training.max_steps before an order "
            "of arms is read from this table.**"
        )
    return text
