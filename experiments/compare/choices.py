"""Choice of each arm's settings: parameter count, update count and learning rate."""

import collections
import functools
import itertools
import pathlib
import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments import studies
from experiments.compare.arms import Arm
from experiments.compare.trainers import Trainer
from macaron_tf.errors import UserError, warn
from macaron_tf.training.progress import read_lines

_COUNT_TOLERANCE = 0.01  # maximum relative difference of parameter counts that count as equal
_MAX_TIMING_RATIO = 1.2  # maximum ratio of the two timings of an arm
_TIMED_UPDATES = 60  # updates per timing
_INTERVAL_UPDATES = 5  # updates per interval of a timing

# Trains arms with the tuning seeds and returns their rows. A row is None if the run diverged.
Train = Callable[[Sequence[Arm]], dict[tuple[Arm, int], dict | None]]


def equalize_parameters(trainer: Trainer, arms: Sequence[Arm]) -> list[Arm]:
    """Returns arms with as many parameters as the first arm of the same task, within 1%.

    An arm without feed-forward layers keeps its parameters. The report shows the difference.
    """
    firsts = {arm.task: arm for arm in reversed(arms)}
    return [_resized(trainer, arm, firsts[arm.task]) for arm in arms]


def _resized(trainer: Trainer, arm: Arm, first: Arm) -> Arm:
    """Returns `arm` with a `feed_forward_dim` for as many parameters as `first` has."""
    if arm is first:
        return arm

    def count(arm: Arm) -> int:
        network = trainer.network(arm, trainer.recipe(arm))
        network.build()
        return network.count_params()

    def resized(dim: int) -> Arm:
        return arm.changed(f"model.feed_forward_dim={dim}")

    target, found = count(first), count(arm)
    dim = start_dim = trainer.recipe(arm).model_config().feed_forward_dim
    # The number of parameters is linear in `feed_forward_dim`, except for rounding.
    slope = (count(resized(2 * start_dim)) - found) / start_dim
    if not slope:
        warn(f"{arm.name} keeps its {found:,} parameters, because it has no feed-forward layer")
        return arm
    if found != target:
        dim = round(start_dim + (target - found) / slope)
        found = count(resized(dim)) if dim > 0 else 0
    if abs(found - target) > _COUNT_TOLERANCE * target:
        failure = f"no model.feed_forward_dim gives {arm.name} as many parameters as {first.name}"
        raise UserError(f"{failure} ({target:,}): leave --equal parameters out")
    return resized(dim)


def equalize_time(
    trainer: Trainer, arms: list[Arm], out: pathlib.Path, jobs: int
) -> tuple[list[Arm], list[dict]]:
    """Chooses the number of updates of each arm, so that all arms train equally long.

    Each arm trains twice for 60 updates, while nothing else runs, on the CPUs of one of `jobs`
    runs. The shorter time of every interval of five updates except the first counts. Intervals have
    the same batches in all arms, so two arms are compared by the median ratio over them. The
    warm-up is scaled with the updates. The first arm keeps its number of updates.

    Also returns a dict for each arm: "arm" (name), "ratio" (of its time per update to that
    of the first arm), "seconds" (per update) and "updates".
    """
    folder, first = out / "timing", arms[0]
    tasks = {
        f"timing of {name}": functools.partial(
            _short_run, trainer, arm, folder / name, _TIMED_UPDATES
        )
        for attempt in (1, 2)
        for arm in arms
        for name in [f"{arm.label}-{attempt}"]
    }
    measured = [run["seconds"] for run in studies.run_tasks(1, tasks, shares=jobs)]
    reference, equalized, timings = [], [], []
    for arm, *both in zip(arms, measured[: len(arms)], measured[len(arms) :], strict=True):
        low, high = sorted(map(statistics.median, both))
        if high > _MAX_TIMING_RATIO * low:
            for attempt in (1, 2):
                (folder / f"{arm.label}-{attempt}.json").unlink()
            raise UserError(
                f"--equal time cannot measure {arm.label}, because its two timings differ by "
                f"{100 * (high / low - 1):.0f}%: run the command again while nothing else runs"
            )
        seconds = list(map(min, *both))
        reference = reference or seconds  # of the first arm
        ratio = statistics.median(a / b for a, b in zip(seconds, reference, strict=True))
        per_update = statistics.median(seconds) / _INTERVAL_UPDATES
        equalized.append(_with_updates(trainer, arm, first, ratio))
        updates = trainer.recipe(equalized[-1]).training.max_steps
        timings.append({"arm": arm.name, "ratio": ratio, "updates": updates, "seconds": per_update})
    return equalized, timings


def equalize_flops(
    trainer: Trainer, arms: list[Arm], out: pathlib.Path, jobs: int
) -> tuple[list[Arm], list[dict]]:
    """Chooses the number of updates of each arm, so that all arms train with equal FLOPs.

    Each arm first trains for one update, whose FLOPs `macaron train` counts. The warm-up is scaled
    with the updates. The first arm keeps its number of updates.

    Also returns a dict for each arm as `equalize_time` does, with "flops" (per update) in place of
    "seconds".
    """
    tasks = {
        f"FLOPs of {arm.label}": functools.partial(
            _short_run, trainer, arm, out / "flops" / arm.label, 1
        )
        for arm in arms
    }
    flops = [run["flops"] for run in studies.run_tasks(jobs, tasks)]
    equalized, counts = [], []
    for arm, count in zip(arms, flops, strict=True):
        if count is None:
            cause = "their number depends on the data"
            raise UserError(f"--equal flops cannot count the FLOPs of {arm.label}, because {cause}")
        ratio = count / flops[0]
        equalized.append(_with_updates(trainer, arm, arms[0], ratio))
        updates = trainer.recipe(equalized[-1]).training.max_steps
        counts.append({"arm": arm.name, "ratio": ratio, "updates": updates, "flops": count})
    return equalized, counts


def _with_updates(trainer: Trainer, arm: Arm, first: Arm, ratio: float) -> Arm:
    """Returns `arm` with the updates of `first` divided by `ratio`, and with a scaled warm-up."""
    training = trainer.recipe(arm).training
    updates = max(round(trainer.recipe(first).training.max_steps / ratio), 1)
    warm_up = round(training.warmup_steps * updates / training.max_steps)
    return arm.changed(f"training.max_steps={updates}", f"training.warmup_steps={warm_up}")


def _short_run(trainer: Trainer, arm: Arm, run: pathlib.Path, updates: int) -> dict[str, Any]:
    """Trains for some updates, and returns their "seconds" and the "flops" of each.

    The seconds are those of each interval of five updates, but the first, which is traced.
    """
    settings = [
        *trainer.settings(arm, 0),
        f"training.max_steps={updates}",
        f"training.validate_every={updates}",
        f"training.log_every={_INTERVAL_UPDATES}",
        "training.warmup_steps=0",
        *trainer.timing,
    ]

    def make() -> dict[str, Any]:
        shutil.rmtree(run, ignore_errors=True)  # an interrupted timing may have left this folder
        trainer.fit(arm, settings, run, run.with_name(f"{run.name}.log"))
        lines = read_lines(run / "timing.jsonl")
        shutil.rmtree(run)
        seconds = [end["seconds"] - start["seconds"] for start, end in itertools.pairwise(lines)]
        return {"seconds": seconds, "flops": lines[-1].get("flops_per_update")}

    run.parent.mkdir(parents=True, exist_ok=True)
    cache_key = {"recipe": arm.recipe, "settings": settings}
    return studies.read_or_compute(run.with_name(f"{run.name}.json"), cache_key, make)


def tune_rates(
    trainer: Trainer, arms: Sequence[Arm], rates: Sequence[float], train: Train
) -> tuple[list[Arm], list[dict]]:
    """Chooses for each arm the learning rate with the best mean score over the tuning seeds.

    `train` trains arms with the tuning seeds, and returns the results by (arm, seed), `None` for a
    run that diverged, whose rate is never chosen. Also returns a dict for each arm: "arm" (name),
    "task", "scores" (by rate, that of each seed) and "picked" (rate).
    """
    candidates = {
        arm: [arm.changed(f"training.learning_rate={rate!r}", rate=rate) for rate in sorted(rates)]
        for arm in arms
    }
    scores: dict[Arm, list[float | None]] = collections.defaultdict(list)
    trained = train([*itertools.chain.from_iterable(candidates.values())])
    for (candidate, _), row in trained.items():
        scores[candidate].append(row and row[trainer.score])
    best_arms, tunings = [], []
    for arm, arm_candidates in candidates.items():
        stable = [candidate for candidate in arm_candidates if None not in scores[candidate]]
        if not stable:
            raise UserError(f"{arm.name} diverged at every learning rate: add lower --rates")
        best = max(stable, key=lambda one: trainer.sign * statistics.mean(scores[one]))
        best_arms.append(best)
        by_rate = {candidate.rate: scores[candidate] for candidate in arm_candidates}
        tuning = {"arm": arm.name, "task": arm.task, "scores": by_rate, "picked": best.rate}
        tunings.append(tuning)
    return best_arms, tunings
