"""Report of a comparison: tables, verdicts, figures, and a suggestion for the next command."""

import argparse
import collections
import dataclasses
import itertools
import pathlib
import shlex
import statistics
import types
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.stats

from experiments import studies
from experiments.compare.arms import Arm, Trainer
from experiments.compare.choices import Timing, Tuning
from experiments.compare.trainers import tuned_columns
from macaron_tf.evaluation.verdict import RULE, SEEDS, Verdict, is_at_chance, judge
from macaron_tf.runs.recipe import Recipe
from macaron_tf.runs.versions import versions

# Settings that determine which batches arms read, and how many.
_BUDGET = ("batch_size", "epochs", "training.max_steps", "training.accumulation_steps")
# Fields of a result in compare.json, besides the scores.
_FIELDS = ("arm", "width", "task", "rate", "seed", "parameters", "updates", "seconds", "memory_mib")
_BOLD = types.MappingProxyType({"better": "**better**", "worse": "**worse**"})
_TREND = {"better": "**gains**", "worse": "**falls behind**"}
_WIDTHS = "widths.png"
AVERAGE = "average"  # group of the averages over the tasks
Group = int | str | None


@dataclasses.dataclass(frozen=True)
class Study:
    """The results of a comparison.

    Attributes:
        arms: arms of all groups, which are the widths or tasks (see `Arm.group`). The first arm of
            each group is the baseline.
        rows: results of all runs, as one dict for every arm and seed. A dict has the arm's fields,
            the parameter count and the fields of `Trainer.row`.
        timings: timings from `--equal time`, one for each arm; empty without this flag.
        tunings: scores at the learning rates of `--rates`, one `Tuning` for each arm; empty without
            this flag.
    """

    trainer: Trainer
    arms: list[Arm]
    rows: list[dict]
    timings: list[Timing]
    tunings: list[Tuning]
    tuning_seeds: list[int]

    @property
    def first(self) -> str:
        return self.arms[0].name

    @property
    def others(self) -> list[str]:
        names = dict.fromkeys(arm.name for arm in self.arms)
        return [name for name in names if name != self.first]

    @property
    def groups(self) -> list[Group]:
        return list(dict.fromkeys(arm.group for arm in self.arms))

    @property
    def tasks(self) -> list[str]:
        return [arm.task for arm in self.arms if arm.name == self.first and arm.task]

    def rows_of(self, name: str | None, group: Group) -> list[dict]:
        """Returns the results of an arm in a group, or of all arms if `name` is `None`."""
        rows = [row for row in self.rows if (row["task"] or row["width"]) == group]
        return [row for row in rows if name in (None, row["arm"])]

    def scores(self, name: str, group: Group) -> list[float]:
        """Returns an arm's score for each seed. For the group "average", averages over tasks."""
        if group == AVERAGE:
            seeds = zip(*(self.scores(name, task) for task in self.tasks), strict=True)
            return list(map(statistics.mean, seeds))
        return [row[self.trainer.score] for row in self.rows_of(name, group)]


def write(study: Study, options: argparse.Namespace) -> None:
    """Writes and prints the report, and prints a command to try next."""
    trainer, out, first = study.trainer, pathlib.Path(options.out), study.first
    if study.tasks:
        levels = {task: trainer.chance_level(study.rows_of(None, task)) for task in study.tasks}
    else:
        levels = dict.fromkeys(study.groups, trainer.chance_level(study.rows))
    verdicts = _verdicts(study, study.groups, levels)
    tests = [
        test
        for name, width in verdicts
        for test in trainer.tests(study.rows_of(first, width), study.rows_of(name, width))
    ]
    lines, trends = [], {}
    if study.tasks:
        lines += [*_task_table(study, levels), ""]
    for group in study.groups:
        if group is not None:
            lines += [f"## {group if study.tasks else f'model.hidden_dim={group}'}", ""]
        lines += [*_table(study, group, verdicts, levels[group]), ""]
    if len(study.groups) > 1 and not study.tasks:
        trends = trends_of(study, verdicts)
        lines += [*_trend_table(study, trends), "", f"![by width]({_WIDTHS})", ""]
        _draw_widths(study, verdicts, out / _WIDTHS)
    lines += [*_seed_table(study, options.seeds), ""]
    lines += _bootstrap_table(first, tests)
    lines += [*_rates_section(study), *_timing_section(study)]
    size = f"Scores are of {trainer.validation_size(study.rows)} of validation data."
    lines += [RULE, "", _about_table(trainer, first, options), "", size, _about_batches(study)]
    lines += _about_versions(study)
    for groups in [[task] for task in study.tasks] or [study.groups]:
        if level := levels[groups[0]]:
            lines += ["", _about_chance(study, groups, level)]
    lines += ["", *_about_arms(study, options)]
    if tests:
        signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in study.rows}
        lines += ["", *(f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures))]
    _draw(study, levels, out / "compare.png")
    guessing = {group: level and level[0] for group, level in levels.items()}
    record = {
        "rows": [_compact(row, trainer) for row in study.rows],
        "verdicts": [
            {"arm": name, "task" if study.tasks else "width": group, **dataclasses.asdict(verdict)}
            for (name, group), verdict in verdicts.items()
        ],
        "trends": [{"arm": name, **dataclasses.asdict(trend)} for name, trend in trends.items()],
        "bootstrap": tests,
        "guessing": guessing if study.tasks else guessing[study.groups[0]],
        "timing": [dataclasses.asdict(timing) for timing in study.timings],
        "tuning": [dataclasses.asdict(tuning) for tuning in study.tunings],
        "tuning_seeds": study.tuning_seeds if study.tunings else [],
    }
    studies.write(out, "compare", options, _title(study), lines, **record)
    is_near_chance = any(_arms_at_chance(study, group, levels[group]) for group in study.groups)
    print(f"next: {_next(study, verdicts, is_near_chance, options)}")


def _compact(row: dict, trainer: Trainer) -> dict:
    """Returns the part of a result that the tables and the figure need.

    In a curve, a metric has a list of its values at the steps in the list "step".
    """
    metrics = [metric for _, metric in tuned_columns([row["task"]] if row["task"] else []).values()]
    fields = dict.fromkeys((*_FIELDS, *trainer.columns, *metrics))
    result = {key: row[key] for key in fields if row.get(key) is not None}
    keys = ("step", *(key for key in trainer.curves if studies.values(row["curve"], key)))
    return result | {"curve": {key: [point.get(key) for point in row["curve"]] for key in keys}}


def _verdicts(
    study: Study, groups: Sequence[Group], levels: Mapping[Group, tuple[float, str] | None]
) -> dict[tuple, Verdict]:
    """Compares each arm with the first arm in each group, by the rule of `judge`."""
    trainer, pairs, chance = study.trainer, {}, {}
    for group, name in itertools.product(groups, study.others):
        pairs[name, group] = study.scores(name, group), study.scores(study.first, group)
        chance[name, group] = levels[group] and levels[group][0]
    return judge(pairs, trainer.sign > 0, chance, trainer.margin)


def _task_table(study: Study, levels: dict[str, tuple[float, str] | None]) -> list[str]:
    """Formats the Markdown table of the scores of all arms on all tasks, and of their average.

    The metrics that the SwishRNN paper reports instead of a task's score have columns of their own.
    """
    _, digits, factor = study.trainer.columns[study.trainer.score]
    columns = tuned_columns(study.tasks)
    known = [level[0] for level in levels.values() if level]
    level = (statistics.mean(known), "") if len(known) == len(levels) else None
    averages = _verdicts(study, [AVERAGE], {AVERAGE: level})
    lines = []
    for name in (study.first, *study.others):
        cells = [
            studies.mean_of(study.rows_of(name, task), metric, digits, factor)
            for task, metric in columns.values()
        ]
        average = studies.cell(study.scores(name, AVERAGE), digits, factor)
        verdict = verdict_cells(study.trainer, averages.get((name, AVERAGE)))
        lines.append((name, *cells, f"**{average}**", *verdict))
    head = ("arm", *columns, AVERAGE, f"- {study.first}", "95% interval", "p", "verdict")
    text = "The average is over the scores. Its verdicts are corrected for the number of arms."
    return [*studies.table(head, lines), "", text]


def _arm_title(arm: str, group: Group) -> str:
    if group is None:
        return arm
    return f"{arm}, {group}" if isinstance(group, str) else f"{arm}, width {group}"


def _title(study: Study) -> str:
    against = f"{', '.join(study.others)} against " if study.others else ""
    title = f"{against}{study.first}: {study.trainer.label}"
    if study.tasks:
        return f"{title} on {', '.join(study.tasks)}"
    updates = max(row["updates"] for row in study.rows_of(study.first, study.groups[0]))
    length = f"after {updates:,} updates"
    if study.timings:
        length = f"in the time of {updates:,} updates of {study.first}"
    if len(study.groups) > 1:
        length += f", at widths {', '.join(map(str, study.groups))}"
    return f"{title} {length}"


def _format_scores(
    trainer: Trainer | type[Trainer], scores: Iterable[float], sign: str = ""
) -> list[str]:
    _, digits, factor = trainer.columns[trainer.score]
    return [f"{factor * score:{sign}.{digits}f}" for score in scores]


def verdict_cells(
    trainer: Trainer | type[Trainer],
    verdict: Verdict | None,
    texts: Mapping[str, str] = _BOLD,
) -> list[str]:
    """Returns a verdict as four table cells: difference, confidence interval, p-value, verdict.

    The dict `texts` maps a verdict such as "better" to the text of the cell. If `verdict` is
    `None`, all cells are empty.
    """
    if verdict is None:
        return [""] * 4
    text = texts.get(verdict.word, verdict.word)
    cells = [*_format_scores(trainer, [verdict.difference], "+"), "", ""]
    if verdict.interval:
        cells[1] = " to ".join(_format_scores(trainer, verdict.interval, "+"))
        cells[2] = f"{verdict.corrected:.3f}" if verdict.corrected >= 0.001 else "< 0.001"
    return [*cells, f"{text}: {verdict.reason}" if verdict.reason else text]


def _table(
    study: Study,
    group: Group,
    verdicts: dict[tuple, Verdict],
    chance_level: tuple[float, str] | None,
) -> list[str]:
    """Formats the Markdown table for one width or task, with a row per arm.

    A further row shows the chance level, if it is known.
    """
    trainer, lines = study.trainer, []
    arms = [arm for arm in study.arms if arm.group == group]
    first_count = study.rows_of(study.first, group)[0]["parameters"]
    score_values = studies.values(study.rows, trainer.score)
    columns = {
        key: column
        for key, column in trainer.columns.items()
        if key == trainer.score or studies.values(study.rows, key) not in ([], score_values)
    }
    for arm in arms:
        arm_rows = study.rows_of(arm.name, group)
        count = arm_rows[0]["parameters"]
        difference = f"{100 * (count / first_count - 1):+.1f}%"
        seconds, memory_mib = (studies.values(arm_rows, key) for key in ("seconds", "memory_mib"))
        cells = [studies.mean_of(arm_rows, key, *column[1:]) for key, column in columns.items()]
        lines.append(
            (
                arm.name,
                f"{count:,}" + (f" ({difference})" if float(difference[:-1]) else ""),
                *([f"{arm.rate:g}"] if study.tunings else []),
                *([f"{arm_rows[0]['updates']:,}"] if study.timings else []),
                f"{statistics.median(seconds):.0f}",
                f"{statistics.median(memory_mib):,.0f}" if memory_mib else "-",
                f"**{cells[0]}**",
                *cells[1:],
                *verdict_cells(trainer, verdicts.get((arm.name, group))),
            )
        )
    head = ["arm", "parameters", *(["rate"] if study.tunings else [])]
    head += [*(["updates"] if study.timings else []), "seconds", "MiB"]
    if chance_level:
        blanks = [""] * (len(head) - 1), [""] * (len(columns) + 3)
        scores = _format_scores(trainer, [chance_level[0]])
        lines.append(("chance level", *blanks[0], *scores, *blanks[1]))
    head += [name for name, *_ in columns.values()]
    return studies.table([*head, f"- {study.first}", "95% interval", "p", "verdict"], lines)


def _seed_table(study: Study, seeds: Sequence[int]) -> list[str]:
    rows = (
        (_arm_title(arm.name, arm.group),
         *_format_scores(study.trainer, study.scores(arm.name, arm.group)))
        for arm in study.arms
    )  # fmt: skip
    return studies.table((f"{study.trainer.label} of seed", *map(str, seeds)), rows)


def trends_of(study: Study, verdicts: dict[tuple, Verdict]) -> dict[str, Verdict]:
    """Tests, for each arm, whether its score difference from the first arm changes with the width.

    The trend of an arm is the slope of this difference over log2 of the width. In other words, the
    trend is the change of the difference when the width doubles. If the verdict at some width is
    "no verdict", the trend is not tested and gets the verdict "no verdict" for the same reason.
    """
    doublings, slopes, undecided = np.log2(study.groups), {}, {}
    for name in study.others:
        arm_verdicts = [verdicts[name, width] for width in study.groups]
        differences = [verdict.differences for verdict in arm_verdicts]
        arm_slopes = np.polyfit(doublings, differences, 1)[0]  # (seeds,)
        slopes[name] = arm_slopes.tolist(), [0.0] * len(arm_slopes)
        for width, verdict in zip(study.groups, arm_verdicts, strict=True):
            if verdict.reason:
                undecided.setdefault(name, f"{verdict.reason} at width {width}")
    tested = {name: pair for name, pair in slopes.items() if name not in undecided}
    trends = judge(tested, study.trainer.sign > 0)
    for name, reason in undecided.items():
        trends[name] = Verdict(
            tuple(slopes[name][0]), statistics.mean(slopes[name][0]), reason=reason
        )
    return {name: trends[name] for name in study.others}


def _trend_table(study: Study, trends: dict[str, Verdict]) -> list[str]:
    rows = [(name, *verdict_cells(study.trainer, trend, _TREND)) for name, trend in trends.items()]
    change = f"- {study.first}, change with each doubling of the width"
    head = ("trend", change, "95% interval", "p", "verdict")
    text = (
        "The trend is the slope of the differences over the logarithm of the width, with one slope "
        "for each seed. The rule below decides whether an arm *gains* or *falls behind* as models "
        "grow."
    )
    return ["## Trend", "", *studies.table(head, rows), "", text]


def _half_interval(values: Sequence[float]) -> float:
    """Returns half the width of the mean's 95% confidence interval, or 0 for a single value."""
    if len(values) < 2:
        return 0.0
    student = scipy.stats.t.ppf(0.975, len(values) - 1)
    return float(student * statistics.stdev(values) / len(values) ** 0.5)


def _bootstrap_table(first: str, tests: list[dict]) -> list[str]:
    if not tests:
        return []
    lines = []
    for test in tests:
        low, high = test["interval"]
        cells = (f"{test['difference']:+.2f}", f"{low:+.2f} to {high:+.2f}")
        name = _arm_title(test["arm"], test["width"])
        lines.append((name, str(test["seed"]), *cells, f"{test['p_value']:.3f}"))
    head = ("paired bootstrap", "seed", f"- {first}", "95% interval", "p")
    return [*studies.table(head, lines), ""]


def _rates_section(study: Study) -> list[str]:
    """Formats the Markdown table of the scores at every learning rate, with a paragraph below.

    The paragraph names the arms whose best rate is the least or greatest rate of `--rates`. Without
    `--rates`, the result is empty.
    """
    if not study.tunings:
        return []
    trainer, rows, edges = study.trainer, [], []
    number_format = trainer.columns[trainer.score][1:]
    for tuning in study.tunings:
        name = _arm_title(tuning.arm, tuning.group)
        cells = [
            "diverged" if None in scores else studies.cell(scores, *number_format)
            for scores in tuning.scores.values()
        ]
        rows.append((name, *cells, f"{tuning.picked:g}"))
        if tuning.edge:
            edges.append(f"{name} ({tuning.picked:g}, the {tuning.edge})")
    rates = [f"rate {rate:g}" for rate in study.tunings[0].scores]
    seeds = ", ".join(map(str, study.tuning_seeds))
    text = (
        f"The best rate of each arm was chosen by its {trainer.label} with seed {seeds}. These "
        "runs do not count in the comparison."
    )
    if edges:
        text += f" **Best at the edge of the rates**: {'; '.join(edges)}; try further rates."
    return [*studies.table((f"{trainer.label} at", *rates, "picked"), rows), "", text, ""]


def _timing_section(study: Study) -> list[str]:
    if not study.timings:
        return []
    rows = [
        (
            _arm_title(timing.arm, timing.width),
            f"{1000 * timing.seconds:.1f}",
            f"{timing.ratio:.3f}",
            f"{timing.updates:,}",
        )
        for timing in study.timings
    ]
    text = (
        "Equal time: every arm trains for as long as the first arm, and its warm-up is scaled in "
        "proportion to the number of updates."
    )
    head = ("timing", "milliseconds per update", f"/ {study.first}", "updates")
    return [*studies.table(head, rows), "", text, ""]


def _about_table(trainer: Trainer, first: str, options: argparse.Namespace) -> str:
    jobs, better = options.jobs, "higher" if trainer.sign > 0 else "lower"
    concurrency = f"{jobs} at once" if jobs > 1 else "one at a time"
    return (
        f"Mean ± standard deviation over the seeds; {better} is better; `- {first}` is the mean "
        f"difference from {first}. Seconds are the time of a training run with its validations, "
        f"{concurrency}. MiB is the peak memory of its process. Both are medians."
    )


def _about_batches(study: Study) -> str:
    """Returns a sentence that says that arms read the same batches, or how their budgets differ."""
    arms = [arm for arm in study.arms if arm.group == study.groups[0]]
    recipes: dict[str, Recipe] = {arm.name: study.trainer.recipe(arm) for arm in arms}
    equalized = ["training.max_steps"] if study.timings else []
    differences = [
        f"{name} has {path}={value}, {study.first} {first_value}"
        for name, other in recipes.items()
        for path, (first_value, value) in recipes[study.first].differences(other).items()
        if path in _BUDGET and path not in equalized
    ]
    if differences:
        return f"**Budgets differ**: {'; '.join(differences)}."
    same = "begin with the same batches" if study.timings else "read the same batches"
    return f"Arms of one seed {same}."


def _about_versions(study: Study) -> list[str]:
    """Returns a paragraph with the versions that started the runs, if not all are this version."""
    counts = collections.Counter(studies.describe_versions(row["versions"]) for row in study.rows)
    if counts.keys() == {studies.describe_versions(versions())}:
        return []
    parts = [f"{count} by {described}" for described, count in counts.items()]
    return ["", f"Not all runs were started by this version: {', '.join(parts)}."]


def _arms_at_chance(
    study: Study, group: Group, chance_level: tuple[float, str] | None
) -> list[str]:
    """Returns the names of a group's arms at chance level; see `is_at_chance`."""
    level, trainer = chance_level and chance_level[0], study.trainer
    return [
        _arm_title(arm.name, arm.group)
        for arm in study.arms
        if arm.group == group
        and is_at_chance(study.scores(arm.name, group), trainer.sign > 0, level, trainer.margin)
    ]


def _about_chance(study: Study, groups: Sequence[Group], chance_level: tuple[float, str]) -> str:
    """Returns a paragraph that defines the chance level and names the arms at this level."""
    trainer, (value, description) = study.trainer, chance_level
    _, digits, factor = trainer.columns[trainer.score]
    title = f"Chance level of {groups[0]}" if study.tasks else "Chance level"
    text = (
        f"{title}, {factor * value:.{digits}f}: {description}. An arm that is not better by "
        f"more than {factor * trainer.margin:g} is at chance level."
    )
    if names := [name for group in groups for name in _arms_at_chance(study, group, chance_level)]:
        advice = "raise training.max_steps" if trainer.from_random_weights else "train for longer"
        text += f" **{', '.join(names)}: at chance level, {advice}.**"
    return text


def _about_arms(study: Study, options: argparse.Namespace) -> list[str]:
    lines = [f"- {arm.label}: {', '.join((arm.recipe, *arm.settings))}" for arm in study.arms]
    if options.set:
        lines += [f"- all: {', '.join(options.set)}"]
    return lines


def _draw(
    study: Study, chance_levels: Mapping[Group, tuple[float, str] | None], path: pathlib.Path
) -> None:
    """Draws the validation curves, with a panel for each width or task and each metric."""
    trainer, panels, levels = study.trainer, {}, {}
    for group in study.groups:
        for metric, text in trainer.curves.items():
            heading = group if study.tasks else f"width {group}"
            title = text if group is None else f"{heading}: {text}"
            rows = study.rows_of(None, group)
            panels[title] = studies.curves(rows, "arm", "step", metric, "curve")
            level = chance_levels[group]
            if level and metric == trainer.score_curve:
                levels[title] = level[0], "chance level"
    studies.mean_curves(panels, path, "updates", "validation", levels=levels)


def _draw_widths(study: Study, verdicts: dict[tuple, Verdict], path: pathlib.Path) -> None:
    """Draws the score difference between each arm and the first arm against the width.

    Error bars are 95% confidence intervals.
    """
    title, axes = f"{study.trainer.label} - {study.first}", ("model.hidden_dim", "difference, 95%")
    lines = {
        name: {width: verdicts[name, width].differences for width in study.groups}
        for name in study.others
    }
    style = dict(log_x=True, bar=_half_interval, levels={title: (0.0, study.first)})
    studies.mean_curves({title: lines}, path, *axes, **style)


def _next(
    study: Study, verdicts: dict[tuple, Verdict], is_near_chance: bool, options: argparse.Namespace
) -> str:
    """Returns the most useful change of the command, with the reason as a comment."""
    trainer, seeds, tunings = study.trainer, options.seeds, study.tunings
    unused = (n for n in itertools.count(1) if n not in (*seeds, *study.tuning_seeds))
    more_seeds = [*seeds, *itertools.islice(unused, max(SEEDS - len(seeds), 2))]
    words, edges = ({one.word for one in verdicts.values()}, {one.edge for one in tunings})
    typed, first = " ".join(options.arguments), trainer.recipe(study.arms[0])
    if not study.others:  # no verdict to decide
        return f"tensorboard --logdir {shlex.quote(options.out)}"
    if is_near_chance and trainer.from_random_weights:
        steps = 2 * max(row["updates"] for row in study.rows)
        flag, values, reason = "set", [f"training.max_steps={steps}"], "to leave the chance level"
    elif len(seeds) < SEEDS:
        flag, values, reason = "seeds", more_seeds[:SEEDS], f"a verdict needs {SEEDS} seeds"
    elif edges & {"least", "greatest"}:
        rates = list(tunings[0].scores)
        lower, higher = rates[0] ** 2 / rates[1], rates[-1] ** 2 / rates[-2]
        rates = [lower] * ("least" in edges) + rates + [higher] * ("greatest" in edges)
        flag, values, reason = "rates", rates, "the best rate may lie further"
    elif "not decided" in words:
        flag, values, reason = "seeds", more_seeds, "more seeds may decide"
    elif not tunings and "training.learning_rate=" not in typed:
        rates = [first.training.learning_rate * factor for factor in (0.5, 1, 2)]
        flag, values, reason = "rates", rates, "each arm at its best rate"
    elif len(study.groups) == 1 and trainer.from_random_weights and "hidden_dim=" not in typed:
        width = first.model_config().hidden_dim
        flag, values = "widths", [width // 2, width, 2 * width]
        reason = "does it hold at other sizes?"
    else:
        return f"tensorboard --logdir {shlex.quote(options.out)}"
    texts = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    folder = " in another folder" if flag == "set" else ""
    return f"the same command{folder} with --{flag} {' '.join(texts)}  # {reason}"
