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
    """Raises a `UserError` if a flag such as `--widths` or `--rates` conflicts with an arm.

    A flag conflicts with an arm that sets the same setting. All flags except `--rates` conflict
    with fine-tuning arms. The first arm may set `training.max_steps` even with `--equal time`.

    Args:
        kind: type of training.
        arms: the arms; the first arm is the baseline.
        chosen: dict mapping the path of a setting to the flag that determines the setting.
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
    """Returns `arm` with `hidden_dim=width` and with `feed_forward_dim` scaled in proportion."""
    config = kind.recipe(arm).model_config()
    inner = max(round(config.feed_forward_dim * width / config.hidden_dim), 1)
    settings = f"model.hidden_dim={width}", f"model.feed_forward_dim={inner}"
    return arm.changed(*settings, width=width)


def with_parameters(kind: Kind, arm: Arm, first: Arm) -> Arm:
    """Returns `arm` with a `feed_forward_dim` that gives as many parameters as `first` has.

    The two parameter counts may differ by up to 1%, because `feed_forward_dim` is a whole number.

    Raises:
        UserError: no `feed_forward_dim` makes the two parameter counts equal to within 1%.
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
            "--equal parameters cannot be applied, because no model.feed_forward_dim gives "
            f"{arm.name} as many parameters as {first.name}: give {first.name} a larger "
            "model.feed_forward_dim"
        )
    return at(width)


def parameters(kind: Kind, arm: Arm) -> int:
    """Returns the number of parameters in the model of `arm`."""
    recipe = kind.recipe(arm)
    with refuse_oversize(recipe.model_name):
        network = kind.network(arm.name, recipe)
        network.build()
    return network.count_params()


@dataclasses.dataclass(frozen=True)
class Timed:
    """Timing of an arm, and the number of updates that makes training times equal.

    Attributes:
        arm, width: name and width of the arm.
        ratio: ratio of the arm's time per update to the first arm's time per update.
        seconds: time per update in seconds.
        updates: number of updates with which the arm trains for as long as the first arm.
    """

    arm: str
    width: int | None
    ratio: float
    seconds: float
    updates: int


def with_time(
    kind: Kind, groups: list[list[Arm]], out: pathlib.Path, jobs: int
) -> tuple[list[list[Arm]], list[Timed]]:
    """Chooses the number of updates of each arm, so that all arms of a group train equally long.

    The function trains each arm twice for 60 updates, while nothing else runs. Each of these timing
    runs has as many CPUs as a training run of the comparison. The time is measured for every
    interval of five updates, and the shorter of the two times counts. Corresponding intervals have
    the same batches in all arms, so the function compares two arms by the median ratio over the
    intervals. The warm-up of each arm is scaled in proportion to the number of updates.

    Args:
        kind: type of training.
        groups: lists of arms with equal width. The first arm of a group keeps its number of
            updates.
        out: folder of the comparison.
        jobs: number of training runs that the comparison executes at once.

    Returns:
        The groups of arms with their new numbers of updates, and a `Timed` for each arm.

    Raises:
        UserError: the two timings of an arm differ by more than 20%, as on a busy machine.
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
    """Runs a short training run, and returns the seconds that each interval of five updates took.

    The function removes the folder `run` after training. It saves the times in a JSON file beside
    this folder. If the JSON file already exists, the function only reads the file.
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
        scores: dict mapping a learning rate to a list with the score of each tuning seed; `None`
            means that the run diverged.
        picked: learning rate with the best mean score.
    """

    arm: str
    width: int | None
    scores: dict[float, list[float | None]]
    picked: float

    @property
    def edge(self) -> str:
        """`"least"` or `"greatest"` if the best rate is the least or greatest candidate, else "".

        The value is also "" if there is only one candidate.
        """
        ends = {min(self.scores): "least", max(self.scores): "greatest"}
        return ends.get(self.picked, "") if len(self.scores) > 1 else ""


def with_rates(
    kind: Kind, arms: Sequence[Arm], rates: Sequence[float], train: Train
) -> tuple[list[Arm], list[Tuned]]:
    """Chooses for each arm the learning rate with the best mean score over the tuning seeds.

    A learning rate at which a run diverged is never chosen.

    Args:
        kind: type of training.
        arms: the arms.
        rates: candidate learning rates.
        train: function that trains a list of arms with the tuning seeds. It returns a dict mapping
            (arm, seed) to the results of the run; `None` means that the run diverged.

    Returns:
        The arms with their chosen learning rates, and a `Tuned` for each arm.

    Raises:
        UserError: an arm has a diverged run at every learning rate.
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
                f"{arm.name} diverged at every learning rate in --rates: add lower learning rates "
                "to --rates"
            )
        made.append(max(whole, key=lambda one: kind.sign * statistics.mean(scores[one])))
        by_rate = {one.rate: mine for one, mine in scores.items()}
        found.append(Tuned(arm.name, arm.width, by_rate, made[-1].rate))
    return made, found
