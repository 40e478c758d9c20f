"""Report of a comparison: tables, verdicts and figures."""

import collections
import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.stats

from experiments import studies
from experiments.compare.arms import Arm
from experiments.compare.trainers import Level, Trainer
from macaron_tf.evaluation.verdict import RULE, Verdict, is_at_chance, judge
from macaron_tf.runs.versions import versions

# Settings that determine which batches arms read, and how many.
_BUDGET = (
    "data.batch_size",
    "training.epochs",
    "training.max_steps",
    "training.accumulation_steps",
)
# Fields of a result in compare.json, besides the scores.
_FIELDS = ("arm", "width", "task", "rate", "seed", "parameters", "updates", "seconds", "memory_mib")
# Metrics that Lei et al. 2022 probably used for CoLA and MultiRC in table 1, which does not name
# them. CoLA: BERT's score is 82.0, while larger models have Matthews coefficients of 60.6 to 66.3,
# so the metric is accuracy. MultiRC: BERT's score is 69.5, while RoBERTa's mean of F1a and EM on
# SuperGLUE's leaderboard is 68, so the metric is F1a, or perhaps the accuracy of single answers.
_PAPER_METRICS = {"cola": "accuracy", "multirc": "f1a"}
_WORDS = {"better": "gains", "worse": "falls behind"}  # verdicts on trends
_WIDTHS = "widths.png"
AVERAGE = "average"  # group of the averages over the tasks
Group = int | str | None
Verdicts = dict[tuple[str, Group], Verdict]


class Study:
    """The results of a comparison.

    Args:
        arms: arms of all groups, which are the widths or tasks (see `Arm.group`). The first arm of
            each group is the baseline.

    Attributes:
        first, others: names of the baseline and of the other arms.
        groups, tasks: all groups; `tasks` is empty unless they are tasks.
        label, style: heading, and decimals and factor, of the column with the deciding score.
    """

    def __init__(
        self,
        trainer: Trainer,
        arms: list[Arm],
        rows: list[dict],
        timings: list[dict],
        tunings: list[dict],
    ):
        self.trainer, self.arms, self.rows = trainer, arms, rows
        self.timings, self.tunings = timings, tunings
        self.first, *self.others = dict.fromkeys(arm.name for arm in arms)
        self.groups: list[Group] = list(dict.fromkeys(arm.group for arm in arms))
        self.tasks = self.groups if arms[0].task else []
        self.label, *self.style = trainer.columns[trainer.score]

    @functools.cached_property
    def levels(self) -> dict[Group, Level | None]:
        """The chance level of each group."""
        if not self.tasks:
            return dict.fromkeys(self.groups, self.trainer.chance_level(self.rows))
        return {task: self.trainer.chance_level(self.rows_of(None, task)) for task in self.tasks}

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

    def verdicts(self, levels: Mapping[Group, Level | None]) -> Verdicts:
        """Compares each arm with the first arm in the groups of `levels`; see `judge`."""
        pairs, chance = {}, {}
        for (group, level), name in itertools.product(levels.items(), self.others):
            pairs[name, group] = self.scores(name, group), self.scores(self.first, group)
            chance[name, group] = level and level[0]
        return judge(pairs, self.trainer.sign > 0, chance, self.trainer.margin)

    def number(self, score: float, sign: str = "") -> str:
        """Formats a score, or with the sign "+" a difference of scores."""
        digits, factor = self.style
        return f"{factor * score:{sign}.{digits}f}"

    def mean(self, scores: Sequence[float]) -> str:
        return studies.cell(scores, *self.style)


def write(study: Study) -> None:
    """Writes and prints the report."""
    trainer, options, first = study.trainer, study.trainer.options, study.first
    out, verdicts, trends = pathlib.Path(options.out), study.verdicts(study.levels), {}
    tests = [
        test
        for name, width in verdicts
        for test in trainer.tests(study.rows_of(first, width), study.rows_of(name, width))
    ]
    lines = _task_table(study) if study.tasks else []
    for group in study.groups:
        if group is not None:
            lines += [f"## {group if study.tasks else f'model.hidden_dim={group}'}", ""]
        lines += _table(study, group, verdicts)
    if len(study.groups) > 1 and not study.tasks:
        trends = trends_of(study, verdicts)
        lines += [*_trend_table(study, trends), f"![by width]({_WIDTHS})", ""]
        _draw_widths(study, verdicts, out / _WIDTHS)
    lines += [*_seed_table(study), *_bootstrap_table(first, tests)]
    lines += [*_rates_table(study), *_timing_table(study)]
    size = f"Scores are of {trainer.validation_size(study.rows)} of validation data."
    lines += [RULE, "", _about_table(study), "", size, _about_batches(study)]
    lines += [*_about_versions(study), *_about_chance(study), ""]
    lines += [f"- {arm.label}: {', '.join((arm.recipe, *arm.settings))}" for arm in study.arms]
    lines += [f"- all: {', '.join(options.set)}"] if options.set else []
    if tests:
        signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in study.rows}
        lines += ["", *(f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures))]
    _draw(study, out / "compare.png")
    guessing = {group: level and level[0] for group, level in study.levels.items()}
    key = "task" if study.tasks else "width"
    record = {
        "rows": [_compact(row, trainer) for row in study.rows],
        "verdicts": [
            {"arm": name, key: group, **dataclasses.asdict(verdict)}
            for (name, group), verdict in verdicts.items()
        ],
        "trends": [{"arm": name, **dataclasses.asdict(trend)} for name, trend in trends.items()],
        "bootstrap": tests,
        "guessing": guessing if study.tasks else guessing[study.groups[0]],
        "timing": study.timings,
        "tuning": study.tunings,
        "tuning_seeds": options.tuning_seeds,
    }
    studies.write(out, "compare", options, _title(study), lines, **record)


def _compact(row: dict, trainer: Trainer) -> dict:
    """Returns the part of a result that the tables and the figure need, with curves as lists."""
    fields = *_FIELDS, *trainer.columns, _PAPER_METRICS.get(row["task"])
    result = {key: row[key] for key in fields if row.get(key) is not None}
    keys = ("step", *(key for key in trainer.curves if studies.values(row["curve"], key)))
    return result | {"curve": {key: [point.get(key) for point in row["curve"]] for key in keys}}


def _section(rows: list[dict[str, str]], *paragraphs: str) -> list[str]:
    """Formats a Markdown table and the paragraphs below it, or nothing if there are no rows."""
    lines = itertools.chain.from_iterable((text, "") for text in paragraphs)
    return [*studies.table_of(rows), "", *lines] if rows else []


def _task_table(study: Study) -> list[str]:
    """Formats the Markdown table of the scores of all arms on all tasks, and of their average."""
    columns = {task: (task, study.trainer.score) for task in study.tasks}
    extra = {task: _PAPER_METRICS[task] for task in study.tasks if task in _PAPER_METRICS}
    columns |= {f"{task} {metric}": (task, metric) for task, metric in extra.items()}
    known = [level[0] for level in study.levels.values() if level]
    level = (statistics.mean(known), "") if len(known) == len(study.levels) else None
    verdicts = study.verdicts({AVERAGE: level})
    rows = [
        {
            "arm": name,
            **{
                heading: studies.mean_of(study.rows_of(name, task), metric, *study.style)
                for heading, (task, metric) in columns.items()
            },
            AVERAGE: f"**{study.mean(study.scores(name, AVERAGE))}**",
            **_verdict_cells(study, verdicts.get((name, AVERAGE))),
        }
        for name in (study.first, *study.others)
    ]
    text = "The average is over the scores. Its verdicts are corrected for the number of arms."
    return _section(rows, text)


def _title_of(arm: str, group: Group) -> str:
    if group is None:
        return arm
    return f"{arm}, {group}" if isinstance(group, str) else f"{arm}, width {group}"


def _title(study: Study) -> str:
    against = f"{', '.join(study.others)} against " if study.others else ""
    title = f"{against}{study.first}: {study.label}"
    if study.tasks:
        return f"{title} on {', '.join(study.tasks)}"
    updates = max(row["updates"] for row in study.rows_of(study.first, study.groups[0]))
    length = f"after {updates:,} updates"
    if study.timings:
        length = f"in the time of {updates:,} updates of {study.first}"
    if len(study.groups) > 1:
        length += f", at widths {', '.join(map(str, study.groups))}"
    return f"{title} {length}"


def _verdict_cells(study: Study, verdict: Verdict | None, trend: bool = False) -> dict[str, str]:
    """Returns a verdict as table cells: difference, confidence interval, p-value, verdict."""
    if verdict is None:
        return {}
    interval, p, text = "", "", verdict.word
    if text in _WORDS:
        text = f"**{_WORDS[text] if trend else text}**"
    if verdict.interval:
        interval = " to ".join(study.number(end, "+") for end in verdict.interval)
        p = f"{verdict.corrected:.3f}" if verdict.corrected >= 0.001 else "< 0.001"
    subject = ", change with each doubling of the width" if trend else ""
    return {
        f"- {study.first}{subject}": study.number(verdict.difference, "+"),
        "95% interval": interval,
        "p": p,
        "verdict": f"{text}: {verdict.reason}" if verdict.reason else text,
    }


def _table(study: Study, group: Group, verdicts: Verdicts) -> list[str]:
    """Formats the Markdown table for one width or task, with a row per arm."""
    trainer, lines = study.trainer, []
    first_count = study.rows_of(study.first, group)[0]["parameters"]
    score_values = studies.values(study.rows, trainer.score)
    for arm in study.arms:
        if arm.group != group:
            continue
        rows = study.rows_of(arm.name, group)
        count, memory_mib = rows[0]["parameters"], studies.values(rows, "memory_mib")
        difference = f"{100 * (count / first_count - 1):+.1f}%"
        line = {
            "arm": arm.name,
            "parameters": f"{count:,}" + (f" ({difference})" if float(difference[:-1]) else ""),
        }
        if study.tunings:
            line["rate"] = f"{arm.rate:g}"
        if study.timings:
            line["updates"] = f"{rows[0]['updates']:,}"
        line["seconds"] = f"{statistics.median(studies.values(rows, 'seconds')):.0f}"
        line["MiB"] = f"{statistics.median(memory_mib):,.0f}" if memory_mib else "-"
        line[study.label] = f"**{study.mean(study.scores(arm.name, group))}**"
        for key, (heading, *style) in trainer.columns.items():
            if studies.values(study.rows, key) not in ([], score_values):
                line[heading] = studies.mean_of(rows, key, *style)
        lines.append(line | _verdict_cells(study, verdicts.get((arm.name, group))))
    if level := study.levels[group]:
        lines.append({"arm": "chance level", study.label: study.number(level[0])})
    return _section(lines)


def _seed_table(study: Study) -> list[str]:
    rows = []
    for arm in study.arms:
        scores = map(study.number, study.scores(arm.name, arm.group))
        seeds = zip(map(str, study.trainer.options.seeds), scores, strict=True)
        rows.append({f"{study.label} of seed": _title_of(arm.name, arm.group), **dict(seeds)})
    return _section(rows)


def trends_of(study: Study, verdicts: Verdicts) -> dict[str, Verdict]:
    """Tests, for each arm, whether its score difference from the first arm changes with the width.

    The trend is the slope of this difference over log2 of the width, its change when the width
    doubles. "no verdict" at some width is also the verdict on the trend.
    """
    doublings, trends, tested = np.log2(study.groups), {}, {}
    for name in study.others:
        arm_verdicts = [verdicts[name, width] for width in study.groups]
        differences = [verdict.differences for verdict in arm_verdicts]
        slopes = np.polyfit(doublings, differences, 1)[0].tolist()  # one for each seed
        found = zip(study.groups, arm_verdicts, strict=True)
        reasons = [f"{v.reason} at width {width}" for width, v in found if v.reason]
        trends[name] = Verdict(tuple(slopes), statistics.mean(slopes), reason=(*reasons, "")[0])
        if not reasons:
            tested[name] = slopes, [0.0] * len(slopes)
    return trends | judge(tested, study.trainer.sign > 0)


def _trend_table(study: Study, trends: dict[str, Verdict]) -> list[str]:
    rows = [
        {"trend": name, **_verdict_cells(study, verdict, trend=True)}
        for name, verdict in trends.items()
    ]
    text = (
        "The trend is the slope of the differences over the logarithm of the width, with one slope "
        "for each seed. The rule below decides whether an arm *gains* or *falls behind* as models "
        "grow."
    )
    return ["## Trend", "", *_section(rows, text)]


def _bootstrap_table(first: str, tests: list[dict]) -> list[str]:
    rows = [
        {
            "paired bootstrap": _title_of(test["arm"], test["width"]),
            "seed": str(test["seed"]),
            f"- {first}": f"{test['difference']:+.2f}",
            "95% interval": " to ".join(f"{end:+.2f}" for end in test["interval"]),
            "p": f"{test['p_value']:.3f}",
        }
        for test in tests
    ]
    return _section(rows)


def _rates_table(study: Study) -> list[str]:
    """Formats the Markdown table of the scores at every learning rate, with a paragraph below."""
    rows, edges = [], []
    for tuning in study.tunings:
        name, picked = _title_of(tuning["arm"], tuning["group"]), tuning["picked"]
        cells = {
            f"rate {rate:g}": "diverged" if None in scores else study.mean(scores)
            for rate, scores in tuning["scores"].items()
        }
        rows.append({f"{study.label} at": name, **cells, "picked": f"{picked:g}"})
        ends = {min(tuning["scores"]): "least", max(tuning["scores"]): "greatest"}
        if len(ends) > 1 and picked in ends:
            edges.append(f"{name} ({picked:g}, the {ends[picked]})")
    seeds = ", ".join(map(str, study.trainer.options.tuning_seeds))
    text = (
        f"The best rate of each arm was chosen by its {study.label} with seed {seeds}. These runs "
        "do not count in the comparison."
    )
    if edges:
        text += f" **Best at the edge of the rates**: {'; '.join(edges)}; try further rates."
    return _section(rows, text)


def _timing_table(study: Study) -> list[str]:
    rows = [
        {
            "timing": _title_of(timing["arm"], timing["width"]),
            "milliseconds per update": f"{1000 * timing['seconds']:.1f}",
            f"/ {study.first}": f"{timing['ratio']:.3f}",
            "updates": f"{timing['updates']:,}",
        }
        for timing in study.timings
    ]
    text = (
        "Equal time: every arm trains for as long as the first arm, and its warm-up is scaled in "
        "proportion to the number of updates."
    )
    return _section(rows, text)


def _about_table(study: Study) -> str:
    jobs, better = study.trainer.options.jobs, "higher" if study.trainer.sign > 0 else "lower"
    return (
        f"Mean ± standard deviation over the seeds; {better} is better; `- {study.first}` is the "
        f"mean difference from {study.first}. Seconds are the time of a training run with its "
        f"validations, {f'{jobs} at once' if jobs > 1 else 'one at a time'}. MiB is the peak "
        "memory of its process. Both are medians."
    )


def _about_batches(study: Study) -> str:
    """Returns a sentence that says that arms read the same batches, or how their budgets differ."""
    arms = [arm for arm in study.arms if arm.group == study.groups[0]]
    recipes = {arm.name: study.trainer.recipe(arm) for arm in arms}
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


def _about_chance(study: Study) -> list[str]:
    """Returns paragraphs that define the chance levels and name the arms at these levels."""
    trainer, lines = study.trainer, []
    advice = "raise training.max_steps" if trainer.from_random_weights else "train for longer"
    for groups in [[task] for task in study.tasks] or [study.groups]:
        if not (level := study.levels[groups[0]]):
            continue
        chance = trainer.sign > 0, level[0], trainer.margin
        text = (
            f"Chance level{f' of {groups[0]}' if study.tasks else ''}, {study.number(level[0])}: "
            f"{level[1]}. An arm that is not better by more than "
            f"{study.style[1] * trainer.margin:g} is at chance level."
        )
        names = [
            _title_of(arm.name, arm.group)
            for arm in study.arms
            if arm.group in groups and is_at_chance(study.scores(arm.name, arm.group), *chance)
        ]
        if names:
            text += f" **{', '.join(names)}: at chance level, {advice}.**"
        lines += ["", text]
    return lines


def _draw(study: Study, path: pathlib.Path) -> None:
    """Draws the validation curves, with a panel for each width or task and each metric."""
    trainer, panels, levels = study.trainer, {}, {}
    for group, (metric, text) in itertools.product(study.groups, trainer.curves.items()):
        heading = group if study.tasks else f"width {group}"
        title = text if group is None else f"{heading}: {text}"
        panels[title] = studies.curves(study.rows_of(None, group), "arm", "step", metric)
        if metric == trainer.score_curve and (level := study.levels[group]):
            levels[title] = level[0], "chance level"
    studies.mean_curves(panels, path, "updates", "validation", levels=levels)


def _draw_widths(study: Study, verdicts: Verdicts, path: pathlib.Path) -> None:
    """Draws the score differences from the first arm against the width, with 95% intervals."""
    title, axes = f"{study.label} - {study.first}", ("model.hidden_dim", "difference, 95%")

    def half_interval(values: Sequence[float]) -> float:
        student = scipy.stats.t.ppf(0.975, len(values) - 1)
        return student * scipy.stats.sem(values) if len(values) > 1 else 0.0

    lines = {
        name: {width: verdicts[name, width].differences for width in study.groups}
        for name in study.others
    }
    style = dict(log_x=True, bar=half_interval, levels={title: (0.0, study.first)})
    studies.mean_curves({title: lines}, path, *axes, **style)
