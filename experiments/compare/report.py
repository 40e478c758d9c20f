"""Report of a comparison: tables, verdicts, figures, and a suggestion for the next command."""

import argparse
import dataclasses
import itertools
import pathlib
import shlex
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.stats

from experiments import studies
from experiments.compare.choices import Timed, Tuned
from experiments.compare.kinds import Arm, Kind
from experiments.recipe import Recipe
from macaron_tf.command_names import as_typed
from macaron_tf.evaluation.verdict import RULE, SEEDS, Verdict, is_guessing, judge

# Settings that determine which batches arms read, and how many.
_BUDGET = ("batch_size", "epochs", "training.max_steps", "training.accumulation_steps")
_TEXT = ("hypotheses", "references", "metric", "decoding", "precisions")
_BOLD = {"better": "**better**", "worse": "**worse**"}
_TREND = {"better": "**gains**", "worse": "**falls behind**"}
_WIDTHS = "widths.png"


@dataclasses.dataclass(frozen=True)
class Study:
    """The results of a comparison.

    Attributes:
        kind: type of training.
        arms: arms at all widths. The first arm at each width is the baseline.
        rows: results of all runs, as one dict for every arm and seed. A dict has the arm's fields,
            the parameter count and the fields of `Kind.row`.
        timed: timings from `--equal time`, one for each arm; empty without this flag.
        tuned: scores at the learning rates of `--rates`, one `Tuned` for each arm; empty without
            this flag.
        tuning_seeds: seeds of the runs that tuned the learning rates.
    """

    kind: Kind
    arms: list[Arm]
    rows: list[dict]
    timed: list[Timed]
    tuned: list[Tuned]
    tuning_seeds: list[int]

    @property
    def first(self) -> str:
        return self.arms[0].name

    @property
    def others(self) -> list[str]:
        names = dict.fromkeys(arm.name for arm in self.arms)
        return [name for name in names if name != self.first]

    @property
    def widths(self) -> list[int | None]:
        return list(dict.fromkeys(arm.width for arm in self.arms))

    def of(self, name: str, width: int | None) -> list[dict]:
        """Returns the results of the arm `name` at the width `width`, one dict for each seed."""
        return [row for row in self.rows if (row["arm"], row["width"]) == (name, width)]

    def scores(self, name: str, width: int | None) -> list[float]:
        return [row[self.kind.score] for row in self.of(name, width)]


def write(study: Study, options: argparse.Namespace) -> None:
    """Writes and prints the report, and prints a command to try next."""
    kind, out, first = study.kind, pathlib.Path(options.out), study.first
    guessing = kind.guessing(study.rows)
    pairs = {
        (name, width): (study.scores(name, width), study.scores(first, width))
        for width in study.widths
        for name in study.others
    }
    more = kind.sign > 0
    verdicts = judge(pairs, more, guessing and guessing[0], kind.margin)
    tests = [
        test
        for name, width in pairs
        for test in kind.tests(study.of(first, width), study.of(name, width))
    ]
    lines, trends = [], {}
    for width in study.widths:
        lines += [] if width is None else [f"## model.hidden_dim={width}", ""]
        lines += [*_table(study, width, verdicts, guessing), ""]
    if len(study.widths) > 1:
        trends = trends_of(study, verdicts)
        lines += [*_trend_table(study, trends), "", f"![by width]({_WIDTHS})", ""]
        _draw_widths(study, verdicts, out / _WIDTHS)
    lines += [*_every_seed(study, options.seeds), ""]
    lines += _bootstraps(first, tests)
    lines += [*_rates(study), *_times(study)]
    lines += [RULE, "", _about_table(kind, first, options), "", _about_batches(study)]
    if guessing:
        lines += ["", _about_guessing(study, guessing)]
    lines += ["", *_about_arms(study, options)]
    if tests:
        signatures = {(row["tokenized_signature"], row["bleu_signature"]) for row in study.rows}
        lines += ["", *(f"Signatures: `{a}`; `{b}`." for a, b in sorted(signatures))]
    _draw(study, guessing, out / "compare.png")
    record = {
        "rows": [{key: row[key] for key in row if key not in _TEXT} for row in study.rows],
        "verdicts": _listed(verdicts, "arm", "width"),
        "trends": _listed({(name,): trend for name, trend in trends.items()}, "arm"),
        "bootstrap": tests,
        "guessing": guessing and guessing[0],
        "timing": [dataclasses.asdict(one) for one in study.timed],
        "tuning": [dataclasses.asdict(one) for one in study.tuned],
        "tuning_seeds": study.tuning_seeds if study.tuned else [],
    }
    studies.write(out, "compare", "compare", options, _title(study), lines, **record)
    print(f"next: {_next(study, verdicts, bool(_near(study, guessing)), options)}")


def _listed(verdicts: dict[tuple, Verdict], *names: str) -> list[dict]:
    """Converts verdicts to a list of dicts for JSON.

    Args:
        verdicts: dict that maps a tuple, such as (arm, width), to the verdict.
        names: keys under which the dicts contain the elements of the tuple, such as "arm" and
            "width".
    """
    return [
        {**dict(zip(names, key, strict=True)), **dataclasses.asdict(verdict)}
        for key, verdict in verdicts.items()
    ]


def _named(arm: str, width: int | None) -> str:
    return arm if width is None else f"{arm}, width {width}"


def _title(study: Study) -> str:
    updates = max(row["updates"] for row in study.of(study.first, study.widths[0]))
    length = f"after {updates:,} updates"
    if study.timed:
        length = f"in the time of {updates:,} updates of {study.first}"
    if len(study.widths) > 1:
        length += f", at widths {', '.join(map(str, study.widths))}"
    return f"{', '.join(study.others)} against {study.first}: {study.kind.label} {length}"


def _shown(kind: Kind, scores: Iterable[float], sign: str = "") -> list[str]:
    _, digits, factor = kind.columns[kind.score]
    return [f"{factor * score:{sign}.{digits}f}" for score in scores]


def _tested(kind: Kind, verdict: Verdict | None, words: dict[str, str]) -> list[str]:
    """Returns a verdict as four table cells: difference, confidence interval, p-value, verdict.

    The dict `words` maps a verdict such as "better" to the text of the cell. If `verdict` is
    `None`, all cells are empty.
    """
    if verdict is None:
        return [""] * 4
    word = words.get(verdict.word, verdict.word)
    cells = [*_shown(kind, [verdict.difference], "+"), "", ""]
    if verdict.interval:
        cells[1] = " to ".join(_shown(kind, verdict.interval, "+"))
        cells[2] = f"{verdict.corrected:.3f}" if verdict.corrected >= 0.001 else "< 0.001"
    return [*cells, f"{word}: {verdict.reason}" if verdict.reason else word]


def _table(
    study: Study,
    width: int | None,
    verdicts: dict[tuple, Verdict],
    guessing: tuple[float, str] | None,
) -> list[str]:
    """Formats the Markdown table for one width, with a row per arm.

    A further row shows the chance level, if it is known.
    """
    kind, lines = study.kind, []
    arms = [arm for arm in study.arms if arm.width == width]
    wanted = study.of(study.first, width)[0]["parameters"]
    decides = studies.values(study.rows, kind.score)
    columns = {
        key: form
        for key, form in kind.columns.items()
        if key == kind.score or studies.values(study.rows, key) not in ([], decides)
    }
    for arm in arms:
        mine = study.of(arm.name, width)
        more = f"{100 * (mine[0]['parameters'] / wanted - 1):+.1f}%"
        seconds, memory = (studies.values(mine, key) for key in ("seconds", "memory_mib"))
        cells = [studies.mean_of(mine, key, *form[1:]) for key, form in columns.items()]
        lines.append(
            (
                arm.name,
                f"{mine[0]['parameters']:,}" + (f" ({more})" if float(more[:-1]) else ""),
                *([f"{arm.rate:g}"] if study.tuned else []),
                *([f"{mine[0]['updates']:,}"] if study.timed else []),
                f"{statistics.median(seconds):.0f}",
                f"{statistics.median(memory):,.0f}" if memory else "-",
                f"**{cells[0]}**",
                *cells[1:],
                *_tested(kind, verdicts.get((arm.name, width)), _BOLD),
            )
        )
    head = ["arm", "parameters", *(["rate"] if study.tuned else [])]
    head += [*(["updates"] if study.timed else []), "seconds", "MiB"]
    if guessing:
        empty = [""] * (len(head) - 1), [""] * (len(columns) + 3)
        lines.append(("chance level", *empty[0], *_shown(kind, [guessing[0]]), *empty[1]))
    head += [name for name, *_ in columns.values()]
    return studies.table([*head, f"- {study.first}", "95% interval", "p", "verdict"], lines)


def _every_seed(study: Study, seeds: Sequence[int]) -> list[str]:
    rows = (
        (_named(arm.name, arm.width),
         *_shown(study.kind, study.scores(arm.name, arm.width)))
        for arm in study.arms
    )  # fmt: skip
    return studies.table((f"{study.kind.label} of seed", *map(str, seeds)), rows)


def trends_of(study: Study, verdicts: dict[tuple, Verdict]) -> dict[str, Verdict]:
    """Tests, for each arm, whether its score difference from the first arm changes with the width.

    The trend of an arm is the slope of this difference over log2 of the width. In other words, the
    trend is the change of the difference when the width doubles.

    Returns:
        A dict mapping the name of an arm to the verdict on its trend.
    """
    doublings, slopes, none = np.log2(study.widths), {}, {}
    for name in study.others:
        mine = [verdicts[name, width] for width in study.widths]
        found = np.polyfit(doublings, [one.differences for one in mine], 1)[0]  # (seeds,)
        slopes[name] = found.tolist(), [0.0] * len(found)
        pairs = zip(study.widths, mine, strict=True)
        if reasons := [f"{one.reason} at width {width}" for width, one in pairs if one.reason]:
            none[name] = reasons[0]
    judged = {name: pair for name, pair in slopes.items() if name not in none}
    found = judge(judged, study.kind.sign > 0)
    for name, reason in none.items():
        found[name] = Verdict(
            tuple(slopes[name][0]), statistics.mean(slopes[name][0]), reason=reason
        )
    return {name: found[name] for name in study.others}


def _trend_table(study: Study, trends: dict[str, Verdict]) -> list[str]:
    rows = [(name, *_tested(study.kind, trend, _TREND)) for name, trend in trends.items()]
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


def _bootstraps(first: str, tests: list[dict]) -> list[str]:
    if not tests:
        return []
    lines = []
    for test in tests:
        least, most = test["interval"]
        cells = (f"{test['difference']:+.2f}", f"{least:+.2f} to {most:+.2f}")
        name = _named(test["arm"], test["width"])
        lines.append((name, str(test["seed"]), *cells, f"{test['p_value']:.3f}"))
    head = ("paired bootstrap", "seed", f"- {first}", "95% interval", "p")
    return [*studies.table(head, lines), ""]


def _rates(study: Study) -> list[str]:
    """Formats the Markdown table of the scores at every learning rate, with a paragraph below.

    The paragraph names the arms whose best rate is the least or greatest rate of `--rates`. Without
    `--rates`, the result is empty.
    """
    if not study.tuned:
        return []
    kind, rows, edges = study.kind, [], []
    for one in study.tuned:
        name = _named(one.arm, one.width)
        cells = [
            "diverged" if None in scores else studies.cell(scores, *kind.columns[kind.score][1:])
            for scores in one.scores.values()
        ]
        rows.append((name, *cells, f"{one.picked:g}"))
        if one.edge:
            edges.append(f"{name} ({one.picked:g}, the {one.edge})")
    rates = [f"rate {rate:g}" for rate in study.tuned[0].scores]
    seeds = ", ".join(map(str, study.tuning_seeds))
    text = (
        f"The best rate of each arm was chosen by its {kind.label} with seed {seeds}. These runs "
        "do not count in the comparison."
    )
    if edges:
        text += f" **Best at the edge of the rates**: {'; '.join(edges)}; try further rates."
    return [*studies.table((f"{kind.label} at", *rates, "picked"), rows), "", text, ""]


def _times(study: Study) -> list[str]:
    if not study.timed:
        return []
    rows = [
        (
            _named(one.arm, one.width),
            f"{1000 * one.seconds:.1f}",
            f"{one.ratio:.3f}",
            f"{one.updates:,}",
        )
        for one in study.timed
    ]
    text = (
        "Equal time: every arm trains for as long as the first arm, and its warm-up is scaled in "
        "proportion to the number of updates."
    )
    head = ("timing", "milliseconds per update", f"/ {study.first}", "updates")
    return [*studies.table(head, rows), "", text, ""]


def _about_table(kind: Kind, first: str, options: argparse.Namespace) -> str:
    jobs, more = options.jobs, "higher" if kind.sign > 0 else "lower"
    beside = f"{jobs} at once" if jobs > 1 else "one at a time"
    return (
        f"Mean ± standard deviation over the seeds; {more} is better; `- {first}` is the mean "
        f"difference from {first}. Seconds are the time of a training run with its validations, "
        f"{beside}. MiB is the peak memory of its process. Both are medians."
    )


def _about_batches(study: Study) -> str:
    """Returns a sentence that says whether all arms read the same batches."""
    arms = [arm for arm in study.arms if arm.width == study.widths[0]]
    recipes: dict[str, Recipe] = {arm.name: study.kind.recipe(arm) for arm in arms}
    chosen = ["training.max_steps"] if study.timed else []
    unequal = [
        f"{name} has {path}={theirs}, {study.first} {mine}"
        for name, other in recipes.items()
        for path, (mine, theirs) in recipes[study.first].differences(other).items()
        if path in _BUDGET and path not in chosen
    ]
    if unequal:
        return f"**Budgets differ**: {'; '.join(unequal)}."
    same = "begin with the same batches" if study.timed else "read the same batches"
    return f"Arms of one seed {same}."


def _near(study: Study, guessing: tuple[float, str] | None) -> list[str]:
    """Returns the names of the arms at chance level; see `is_guessing`."""
    value, kind = guessing and guessing[0], study.kind
    return [
        _named(arm.name, arm.width)
        for arm in study.arms
        if is_guessing(study.scores(arm.name, arm.width), kind.sign > 0, value, kind.margin)
    ]


def _about_guessing(study: Study, guessing: tuple[float, str]) -> str:
    """Returns a paragraph that defines the chance level and names the arms at this level."""
    kind, (value, words) = study.kind, guessing
    _, digits, factor = kind.columns[kind.score]
    text = (
        f"Chance level, {factor * value:.{digits}f}: {words}. An arm that is not better by more "
        f"than {factor * kind.margin:g} is at chance level."
    )
    if near := _near(study, guessing):
        longer = "raise training.max_steps" if kind.draws else "train for longer"
        text += f" **{', '.join(near)}: at chance level, {longer}.**"
    return text


def _about_arms(study: Study, options: argparse.Namespace) -> list[str]:
    lines = [f"- {arm.label}: {', '.join((arm.recipe, *arm.settings))}" for arm in study.arms]
    if options.set:
        lines += [f"- all: {', '.join(map(study.kind.shared, options.set))}"]
    return lines


def _draw(study: Study, guessing: tuple[float, str] | None, path: pathlib.Path) -> None:
    """Draws the validation curves, with a panel for each width and metric."""
    kind, panels, levels = study.kind, {}, {}
    for width in study.widths:
        rows = [row for row in study.rows if row["width"] == width]
        for metric, text in kind.curves.items():
            title = text if width is None else f"width {width}: {text}"
            panels[title] = studies.curves(rows, "arm", "step", metric, "curve")
            if guessing and metric == kind.judged_curve:
                levels[title] = guessing[0], "chance level"
    studies.mean_curves(panels, path, "updates", "validation", levels=levels)


def _draw_widths(study: Study, verdicts: dict[tuple, Verdict], path: pathlib.Path) -> None:
    """Draws the score difference between each arm and the first arm against the width.

    Error bars are 95% confidence intervals.
    """
    title, axes = f"{study.kind.label} - {study.first}", ("model.hidden_dim", "difference, 95%")
    lines = {
        name: {width: verdicts[name, width].differences for width in study.widths}
        for name in study.others
    }
    shown = dict(log_x=True, bar=_half_interval, levels={title: (0.0, study.first)})
    studies.mean_curves({title: lines}, path, *axes, **shown)


def _next(
    study: Study, verdicts: dict[tuple, Verdict], near: bool, options: argparse.Namespace
) -> str:
    """Returns the most useful command to run next, with the reason as a comment.

    Args:
        study: the comparison.
        verdicts: dict that maps (arm, width) to the verdict.
        near: whether an arm is at chance level.
        options: parsed options of the command.
    """
    kind, seeds = study.kind, options.seeds
    free = (n for n in itertools.count(1) if n not in (*seeds, *study.tuning_seeds))

    def more_seeds(count: int) -> list[str]:
        return [*map(str, seeds), *map(str, itertools.islice(free, count))]

    words, edges = {one.word for one in verdicts.values()}, {one.edge for one in study.tuned}
    if near and kind.draws:
        steps = f"training.max_steps={2 * max(row['updates'] for row in study.rows)}"
        return _again(
            options, "to leave the chance level", "--set", steps, out=f"{options.out}-longer"
        )
    if len(seeds) < SEEDS:
        more = more_seeds(SEEDS - len(seeds))
        return _again(options, f"a verdict needs {SEEDS} seeds", "--seeds", *more)
    if edges & {"least", "greatest"}:
        rates = list(study.tuned[0].scores)
        low, high = rates[0] ** 2 / rates[1], rates[-1] ** 2 / rates[-2]
        wider = [low] * ("least" in edges) + rates + [high] * ("greatest" in edges)
        return _again(
            options, "the best rate may lie further", "--rates", *(f"{one:g}" for one in wider)
        )
    if "not decided" in words:
        return _again(options, "more seeds may decide", "--seeds", *more_seeds(2))
    typed = " ".join(options.arguments)
    if not study.tuned and "training.learning_rate=" not in typed:
        rate = kind.recipe(study.arms[0]).training.learning_rate
        rates = [f"{rate * by:g}" for by in (0.5, 1, 2)]
        return _again(options, "each arm at its best rate", "--rates", *rates)
    if len(study.widths) == 1 and kind.draws and "model.hidden_dim=" not in typed:
        width = kind.recipe(study.arms[0]).model_config().hidden_dim
        widths = [str(width // 2), str(width), str(2 * width)]
        return _again(options, "does it hold at other sizes?", "--widths", *widths)
    return f"tensorboard --logdir {shlex.quote(options.out)}"


def _again(options: argparse.Namespace, why: str, flag: str, *values: str, out: str = "") -> str:
    """Returns the user's command with new values of a flag, and a reason as a comment.

    Args:
        options: parsed options of the command.
        why: the reason to run the new command.
        flag: flag to set. New values of `--set` are added to the user's values. For any other flag,
            they replace the user's values.
        values: values of the flag.
        out: new output folder; "" means the same folder.
    """
    words, dropped = [], False
    for word in options.arguments:
        dropped = word == flag != "--set" or (dropped and not word.startswith("-"))
        if not dropped:
            words.append(out if out and word == options.out else word)
    line = shlex.join(["python", "-m", "experiments.compare", *words, flag, *values])
    return as_typed(f"{line}  # {why}")
