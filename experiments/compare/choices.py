"""Choice of each arm's settings: width, parameter count, update count and learning rate."""

import collections
import dataclasses
import functools
import itertools
import pathlib
import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments import studies
from experiments.compare.kinds import Arm, Kind
from macaron_tf.distribution.device_memory import refuse_oversize
from macaron_tf.errors import UserError
from macaron_tf.training.progress import read_lines

_EQUAL = 0.01  # maximum relative difference of parameter counts that count as equal
_STEADY = 1.2  # maximum ratio of the two timings of an arm
_TIMED, _EVERY, _TURNS = 60, 5, 2  # updates per timing, updates per interval, timings per arm

# Trains arms with the tuning seeds and returns their rows. A row is None if the run diverged.
Train = Callable[[Sequence[Arm]], dict[tuple[Arm, int], dict | None]]


def check_arms(kind: Kind, arms: Sequence[Arm], chosen: dict[str, str]) -> None:
    """Raises a `UserError` if an arm sets a setting that a flag chooses.

    Args:
        kind: type of training.
        arms: the arms; the first arm is the baseline.
        chosen: dict mapping the path of a chosen setting to the flag that chooses it.
    """
    unsuitable = [flag for path, flag in chosen.items() if path != "training.learning_rate"]
    if unsuitable and not kind.draws:
        raise UserError(
            f"{unsuitable[0]} does not apply to fine-tuning, where the setting init determines the "
            f"model and the setting epochs the number of updates: leave {unsuitable[0]} out"
        )
    for arm, (path, flag) in itertools.product(arms, chosen.items()):
        if arm.sets(path) and not (path == "training.max_steps" and arm is arms[0]):
            raise UserError(
                f"{arm.name} sets {path}, but {flag} also determines {path}: remove {path} from "
                f"the arm, or leave {flag} out"
            )


def at_width(kind: Kind, arm: Arm, width: int) -> Arm:
    """Returns the arm with `hidden_dim=width` and with `feed_forward_dim` scaled in proportion."""
    config = kind.recipe(arm).model_config()
    inner = max(round(config.feed_forward_dim * width / config.hidden_dim), 1)
    settings = f"model.hidden_dim={width}", f"model.feed_forward_dim={inner}"
    return arm.changed(*settings, width=width)


def with_parameters(kind: Kind, arm: Arm, first: Arm) -> Arm:
    """Returns the arm with a `feed_forward_dim` at which both arms have equal parameter counts.

    The two parameter counts may differ by up to 1%, because `feed_forward_dim` is a whole number.

    Raises:
        UserError: no `feed_forward_dim` makes the counts equal to within 1%.
    """

    def at(width: int) -> Arm:
        return arm.changed(f"model.feed_forward_dim={width}")

    wanted, found = parameters(kind, first), parameters(kind, arm)
    width = start = kind.recipe(arm).model_config().feed_forward_dim
    # The number of parameters is linear in the width, except for rounding.
    slope = (parameters(kind, at(2 * start)) - found) / start
    if found != wanted and slope:
        width = max(round(start + (wanted - found) / slope), 1)
        found = parameters(kind, at(width))
    if abs(found - wanted) > _EQUAL * wanted:
        raise UserError(
            "--equal parameters is not possible, because no model.feed_forward_dim gives "
            f"{arm.name} as many parameters as {first.name}: give {first.name} a larger "
            "model.feed_forward_dim"
        )
    return at(width)


def parameters(kind: Kind, arm: Arm) -> int:
    """Returns the number of parameters of the arm's model."""
    recipe = kind.recipe(arm)
    with refuse_oversize(recipe.model_name):
        network = kind.network(arm.name, recipe)
        network.build()
    return network.count_params()


@dataclasses.dataclass(frozen=True)
class Timed:
    """Measured time per update of an arm, and the number of updates that equalizes training time.

    Attributes:
        arm, width: name and width of the arm.
        ratio: time per update of the arm, divided by the time per update of the first arm.
        seconds: time per update in seconds.
        updates: chosen number of updates.
    """

    arm: str
    width: int | None
    ratio: float
    seconds: float
    updates: int


def with_time(
    kind: Kind, groups: list[list[Arm]], out: pathlib.Path, jobs: int
) -> tuple[list[list[Arm]], list[Timed]]:
    """Chooses the number of updates of each arm, so that training takes the same time in all arms.

    Two short training runs measure each arm on the batches of one seed, while nothing else runs.
    Each run has as many CPUs as a training run of the comparison. A run is split into intervals of
    five updates, and the smaller of the two measured times counts for each interval. The time
    ratio of two arms is the median over the intervals, which have the same batches in all arms.
    The warm-up of each arm is scaled in proportion to the number of updates.

    Args:
        kind: type of training.
        groups: groups of arms of equal width. The first arm of a group sets the time for its group.
        out: folder of the comparison.
        jobs: number of training runs that the comparison executes at once.

    Returns:
        The groups of arms with their new numbers of updates, and the timings.

    Raises:
        UserError: two timings of an arm differ by more than 20%, because the machine is busy.
    """
    arms = list(itertools.chain.from_iterable(groups))
    turns = [
        {
            f"timing of {arm.label}, {turn} of {_TURNS}": functools.partial(
                _intervals, kind, arm, out / "timing" / f"{arm.label}-{turn}"
            )
            for arm in arms
        }
        for turn in range(1, _TURNS + 1)
    ]
    taken = zip(*(studies.at_once(1, tasks, shares=jobs) for tasks in turns), strict=True)
    seconds, timings = {}, []
    for arm, both in zip(arms, taken, strict=True):
        low, high = sorted(map(statistics.median, both))
        if high > _STEADY * low:
            for turn in range(1, _TURNS + 1):
                (out / "timing" / f"{arm.label}-{turn}.json").unlink()
            more = f"{100 * (high / low - 1):.0f}%"
            raise UserError(
                f"--equal time cannot measure {arm.label}, because its two timings differ by "
                f"{more}: run the same command again while nothing else runs on this machine"
            )
        seconds[arm] = list(map(min, *both))

    def lasting(arm: Arm, first: Arm) -> Arm:
        pairs = zip(seconds[arm], seconds[first], strict=True)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        updates = max(round(kind.recipe(first).training.max_steps / ratio), 1)
        update = statistics.median(seconds[arm]) / _EVERY
        timings.append(Timed(arm.name, arm.width, ratio, update, updates))
        own = kind.recipe(arm).training
        warm_up = round(own.warmup_steps * updates / own.max_steps)
        return arm.changed(f"training.max_steps={updates}", f"training.warmup_steps={warm_up}")

    return [[lasting(arm, group[0]) for arm in group] for group in groups], timings


def _intervals(kind: Kind, arm: Arm, run: pathlib.Path) -> list[float]:
    """Returns the seconds of each interval of a short training run in the folder `run`.

    The function saves the seconds in a JSON file beside `run`, and removes the folder.
    """
    settings = kind.settings(arm, 0) + [
        f"training.max_steps={_TIMED}",
        f"training.validate_every={_TIMED}",
        f"training.log_every={_EVERY}",
        "training.warmup_steps=0",
        *kind.timing,
    ]
    log, file = (run.parent / f"{run.name}.{end}" for end in ("log", "json"))

    def make() -> dict[str, Any]:
        shutil.rmtree(run, ignore_errors=True)  # an interrupted timing may have left this folder
        kind.fit(arm, settings, run, log)
        ends = [line["seconds"] for line in read_lines(run / "timing.jsonl")]
        shutil.rmtree(run)
        return {"seconds": [end - start for start, end in itertools.pairwise(ends)]}

    run.parent.mkdir(parents=True, exist_ok=True)
    given = {"recipe": arm.recipe, "settings": settings}
    return studies.kept(file, given, make)["seconds"]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Scores of an arm at each learning rate, and the best learning rate.

    Attributes:
        arm, width: name and width of the arm.
        scores: dict mapping a learning rate to the scores of the tuning seeds; the score is `None`
            if the run diverged.
        picked: the best learning rate.
    """

    arm: str
    width: int | None
    scores: dict[float, list[float | None]]
    picked: float

    @property
    def edge(self) -> str:
        """`"least"` or `"greatest"` if the best rate is the least or greatest tried rate, else "".

        The value is also "" if only one rate was tried.
        """
        ends = {min(self.scores): "least", max(self.scores): "greatest"}
        return ends.get(self.picked, "") if len(self.scores) > 1 else ""


def with_rates(
    kind: Kind, arms: Sequence[Arm], rates: Sequence[float], train: Train
) -> tuple[list[Arm], list[Tuned]]:
    """Chooses for each arm the learning rate with the best mean score.

    Args:
        kind: type of training.
        arms: the arms.
        rates: learning rates to try.
        train: function that trains arms with the tuning seeds.

    Returns:
        The arms with their learning rates, and the scores at all rates.

    Raises:
        UserError: an arm diverged at all rates.
    """
    tried = {
        arm: [arm.changed(f"training.learning_rate={rate!r}", rate=rate) for rate in sorted(rates)]
        for arm in arms
    }
    rows: dict[Arm, list[dict | None]] = collections.defaultdict(list)
    for (one, _), row in train([*itertools.chain.from_iterable(tried.values())]).items():
        rows[one].append(row)
    made, found = [], []
    for arm, ones in tried.items():
        scores = {one: [row and row[kind.score] for row in rows[one]] for one in ones}
        whole = [one for one in ones if None not in scores[one]]
        if not whole:
            raise UserError(
                f"{arm.name} diverged at every learning rate in --rates: give lower learning rates"
            )
        made.append(max(whole, key=lambda one: kind.sign * statistics.mean(scores[one])))
        by_rate = {one.rate: mine for one, mine in scores.items()}
        found.append(Tuned(arm.name, arm.width, by_rate, made[-1].rate))
    return made, found
