"""Report of a comparison: tables, verdicts and figures."""

import collections
import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence

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
_FIELDS = ("arm", "task", "rate", "seed", "parameters", "updates", "seconds", "memory_mib")
_FIELDS += ("flops_per_update",)
# Metrics that Lei et al. 2022 probably used for CoLA and MultiRC in table 1, which does not name
# them. CoLA: BERT's score is 82.0, while larger models have Matthews coefficients of 60.6 to 66.3,
# so the metric is accuracy. MultiRC: BERT's score is 69.5, while RoBERTa's mean of F1a and EM on
# SuperGLUE's leaderboard is 68, so the metric is F1a, or perhaps the accuracy of single answers.
_PAPER_METRICS = {"cola": "accuracy", "multirc": "f1a"}
AVERAGE = "average"  # stands for a task: the averages over the tasks
Task = str | None
Verdicts = dict[tuple[str, Task], Verdict]


class Study:
    """The results of a comparison.

    Args:
        arms: arms of all tasks. The first arm of each task is the baseline.

    Attributes:
        first, others: names of the baseline and of the other arms.
        tasks: all tasks; only `None` if the arms have no tasks.
        budget: what arms with different numbers of updates share, "time" or "FLOPs".
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
        self.budget = "FLOPs" if "flops" in trainer.options.equal else "time"
        self.first, *self.others = dict.fromkeys(arm.name for arm in arms)
        self.tasks: list[Task] = list(dict.fromkeys(arm.task for arm in arms))
        self.label, *self.style = trainer.columns[trainer.score]

    @functools.cached_property
    def levels(self) -> dict[Task, Level | None]:
        """The chance level of each task."""
        return {task: self.trainer.chance_level(self.rows_of(None, task)) for task in self.tasks}

    def rows_of(self, name: str | None, task: Task) -> list[dict]:
        """Returns the results of an arm on a task, or of all arms if `name` is `None`."""
        return [row for row in self.rows if row["task"] == task and name in (None, row["arm"])]

    def scores(self, name: str, task: Task) -> list[float]:
        """Returns an arm's score for each seed. For the task "average", averages over tasks."""
        if task == AVERAGE:
            seeds = zip(*(self.scores(name, one) for one in self.tasks), strict=True)
            return list(map(statistics.mean, seeds))
        return [row[self.trainer.score] for row in self.rows_of(name, task)]

    def verdicts(self, levels: Mapping[Task, Level | None]) -> Verdicts:
        """Compares each arm with the first arm on the tasks of `levels`; see `judge`."""
        pairs, chance = {}, {}
        for (task, level), name in itertools.product(levels.items(), self.others):
            pairs[name, task] = self.scores(name, task), self.scores(self.first, task)
            chance[name, task] = level and level[0]
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
    out, verdicts = pathlib.Path(options.out), study.verdicts(study.levels)
    tests = [
        test
        for name, task in verdicts
        for test in trainer.tests(study.rows_of(first, task), study.rows_of(name, task))
    ]
    lines = [] if study.tasks == [None] else _task_table(study)
    for task in study.tasks:
        lines += [f"## {task}", ""] if task else []
        lines += _table(study, task, verdicts)
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
    guessing = {task: level and level[0] for task, level in study.levels.items()}
    record = {
        "rows": [_compact(row, trainer) for row in study.rows],
        "verdicts": [
            {"arm": name, "task": task, **dataclasses.asdict(verdict)}
            for (name, task), verdict in verdicts.items()
        ],
        "bootstrap": tests,
        "guessing": guessing.get(None, guessing),
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


def _title_of(arm: str, task: Task) -> str:
    return f"{arm}, {task}" if task else arm


def _title(study: Study) -> str:
    against = f"{', '.join(study.others)} against " if study.others else ""
    title = f"{against}{study.first}: {study.label}"
    if study.tasks != [None]:
        return f"{title} on {', '.join(study.tasks)}"
    updates = max(row["updates"] for row in study.rows_of(study.first, None))
    if study.timings:
        return f"{title} in the {study.budget} of {updates:,} updates of {study.first}"
    return f"{title} after {updates:,} updates"


def _verdict_cells(study: Study, verdict: Verdict | None) -> dict[str, str]:
    """Returns a verdict as table cells: difference, confidence interval, p-value, verdict."""
    if verdict is None:
        return {}
    interval, p, text = "", "", verdict.word
    if text in ("better", "worse"):
        text = f"**{text}**"
    if verdict.interval:
        interval = " to ".join(study.number(end, "+") for end in verdict.interval)
        p = f"{verdict.corrected:.3f}" if verdict.corrected >= 0.001 else "< 0.001"
    return {
        f"- {study.first}": study.number(verdict.difference, "+"),
        "95% interval": interval,
        "p": p,
        "verdict": f"{text}: {verdict.reason}" if verdict.reason else text,
    }


def _table(study: Study, task: Task, verdicts: Verdicts) -> list[str]:
    """Formats the Markdown table for one task, with a row per arm."""
    trainer, lines = study.trainer, []
    first_count = study.rows_of(study.first, task)[0]["parameters"]
    score_values = studies.values(study.rows, trainer.score)
    for arm in study.arms:
        if arm.task != task:
            continue
        rows = study.rows_of(arm.name, task)
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
        if flops := rows[0]["flops_per_update"]:
            line["GFLOP/update"] = f"{flops / 1e9:,.4g}"
        line["seconds"] = f"{statistics.median(studies.values(rows, 'seconds')):.0f}"
        line["MiB"] = f"{statistics.median(memory_mib):,.0f}" if memory_mib else "-"
        line[study.label] = f"**{study.mean(study.scores(arm.name, task))}**"
        for key, (heading, *style) in trainer.columns.items():
            if studies.values(study.rows, key) not in ([], score_values):
                line[heading] = studies.mean_of(rows, key, *style)
        lines.append(line | _verdict_cells(study, verdicts.get((arm.name, task))))
    if level := study.levels[task]:
        lines.append({"arm": "chance level", study.label: study.number(level[0])})
    return _section(lines)


def _seed_table(study: Study) -> list[str]:
    rows = []
    for arm in study.arms:
        scores = map(study.number, study.scores(arm.name, arm.task))
        seeds = zip(map(str, study.trainer.options.seeds), scores, strict=True)
        rows.append({f"{study.label} of seed": _title_of(arm.name, arm.task), **dict(seeds)})
    return _section(rows)


def _bootstrap_table(first: str, tests: list[dict]) -> list[str]:
    rows = [
        {
            "paired bootstrap": test["arm"],
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
        name, picked = _title_of(tuning["arm"], tuning["task"]), tuning["picked"]
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
    is_time = study.budget == "time"
    rows = [
        {
            study.budget: timing["arm"],
            **(
                {"milliseconds per update": f"{1000 * timing['seconds']:.1f}"}
                if is_time
                else {"GFLOP per update": f"{timing['flops'] / 1e9:,.4g}"}
            ),
            f"/ {study.first}": f"{timing['ratio']:.3f}",
            "updates": f"{timing['updates']:,}",
        }
        for timing in study.timings
    ]
    equal = "for as long" if is_time else "with as many FLOPs"
    text = (
        f"Equal {study.budget}: every arm trains {equal} as the first arm, and its warm-up is "
        "scaled in proportion to the number of updates."
    )
    return _section(rows, text)


def _about_table(study: Study) -> str:
    jobs, better = study.trainer.options.jobs, "higher" if study.trainer.sign > 0 else "lower"
    return (
        f"Mean ± standard deviation over the seeds; {better} is better; `- {study.first}` is the "
        f"mean difference from {study.first}. Seconds are the time of a training run with its "
        f"validations, {f'{jobs} at once' if jobs > 1 else 'one at a time'}. MiB is the peak "
        "memory of its process. Both are medians. GFLOP/update counts a training step as three "
        "forward passes."
    )


def _about_batches(study: Study) -> str:
    """Returns a sentence that says that arms read the same batches, or how their budgets differ."""
    arms = [arm for arm in study.arms if arm.task == study.tasks[0]]
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
    for task, level in study.levels.items():
        if not level:
            continue
        chance = trainer.sign > 0, level[0], trainer.margin
        text = (
            f"Chance level{f' of {task}' if task else ''}, {study.number(level[0])}: "
            f"{level[1]}. An arm that is not better by more than "
            f"{study.style[1] * trainer.margin:g} is at chance level."
        )
        names = [
            _title_of(name, task)
            for name in (study.first, *study.others)
            if is_at_chance(study.scores(name, task), *chance)
        ]
        if names:
            text += f" **{', '.join(names)}: at chance level, {advice}.**"
        lines += ["", text]
    return lines


def _draw(study: Study, path: pathlib.Path) -> None:
    """Draws the validation curves, with a panel for each task and each metric."""
    trainer, panels, levels = study.trainer, {}, {}
    for task, (metric, text) in itertools.product(study.tasks, trainer.curves.items()):
        title = f"{task}: {text}" if task else text
        panels[title] = studies.curves(study.rows_of(None, task), "arm", "step", metric)
        if metric == trainer.score_curve and (level := study.levels[task]):
            levels[title] = level[0], "chance level"
    studies.mean_curves(panels, path, "updates", "validation", levels=levels)
