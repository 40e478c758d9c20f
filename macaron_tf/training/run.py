"""A run: its directory, its configuration, how far it is, and who is told."""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from macaron_tf.distribution.replicas import spread_seeds
from macaron_tf.distribution.strategy import Workers
from macaron_tf.io import paths as storage
from macaron_tf.training.checkpoints import CheckpointDirectory, is_checkpoint
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.progress import Reporter
from macaron_tf.training.state import (
    RunState,
    manifest_fields,
    restore_checkpoint,
    write_checkpoint,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A run that was stopped by a signal after saving; exit status 128 + the signal's number.

    130 after Ctrl-C, 143 after SIGTERM, as a shell reports them.
    """

    def __init__(self, signal_number: int, step: int):
        super().__init__(128 + signal_number)
        self.step = step


class StoppedByHand(BaseException):
    """Thrown into a validation by a signal; an ordinary `except Exception` does not stop it."""


class Interruptions:
    """While the context lasts, the first signal only sets `received`; a second one acts at once.

    Signals reach Python's main thread only: in any other, nothing is caught.
    """

    def __init__(self):
        self.received: int | None = None
        self._raises = False
        self._previous: dict = {}

    def __enter__(self) -> "Interruptions":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error) -> None:
        self._restore()

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """While the context lasts, a signal breaks off what runs inside, quietly."""
        self._raises = True
        try:
            yield
        except StoppedByHand:
            pass
        finally:
            self._raises = False

    def _handle(self, number, frame) -> None:
        self.received = number
        self._restore()
        if self._raises:
            raise StoppedByHand

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class Run:
    """What the callbacks of a run share.

    Args:
        model: compiled and prepared.
        config: how long to train, when to save.
        run_dir: the run's directory, which exists.
        vocabulary_hash: kept in every checkpoint.
        reporters: told how the run goes.
        workers: the processes that train together; the chief alone writes.

    Attributes:
        state: scores and times; `RunState.elapsed_seconds` is as of the start or the resume.
        metrics: the last validation's.
        interrupted: whether some worker was told to stop; `decide` finds out.
    """

    def __init__(
        self,
        model: FitModel,
        config: TrainingConfig,
        run_dir: str | os.PathLike,
        vocabulary_hash: str,
        reporters: Sequence[Reporter],
        workers: Workers,
    ):
        self.model = model
        self.workers = workers
        self.config = config
        self.path = storage.as_path(run_dir)
        self.vocabulary_hash = vocabulary_hash
        self.reporters = list(reporters)
        self.checkpoints = CheckpointDirectory(run_dir)
        self.state = RunState()
        self.metrics: Mapping[str, float] = {}
        self.saved_at: int | None = None
        self.interrupted = False
        self.away_seconds = 0.0
        # The monotonic clock: a run's budget must not jump with the machine's time of day.
        self._began = time.monotonic()

    def restore(self) -> None:
        """Goes on from the newest whole checkpoint, if there is one.

        Raises:
            UserError: it belongs to another model, vocabulary or optimizer.
        """
        step = -1.0
        if self.workers.chief:
            self.checkpoints.clean()
            if newest := self.checkpoints.latest():
                step = float(newest.name.removeprefix("step-"))
        # All workers go on from the one that the chief found whole.
        (step,) = self.workers.of_chief([step])
        if step < 0:
            return
        checkpoint = self.checkpoints.of_step(int(step))
        self.state = restore_checkpoint(checkpoint, self.model, self.vocabulary_hash)
        spread_seeds(self.model.updates.strategy, self.model.seed_states)
        self.saved_at = self.model.step
        if not self.workers.chief:
            return
        best = self.state.best_step
        # Killed after the checkpoint was renamed and before best.json was.
        if best is not None and is_checkpoint(self.checkpoints.of_step(best)):
            self.checkpoints.mark_best(best, self.config.best_metric, self.state.best_score)

    def save(self) -> None:
        """The chief writes a checkpoint of this moment, and deletes those that are too many.

        Raises:
            UserError: it cannot be written; the older ones are intact.
        """
        step = self.saved_at = self.model.step
        if not self.workers.chief:
            return
        state = dataclasses.replace(self.state, elapsed_seconds=self.elapsed_seconds())
        with self.away():
            for reporter in self.reporters:
                reporter.sync()
            metrics = dict(self.metrics) if self.state.validated_at == step else {}
            self.checkpoints.save(
                step,
                lambda directory: write_checkpoint(directory, self.model, state),
                manifest_fields(self.model, self.vocabulary_hash, metrics),
            )
            if self.state.best_step == step:
                self.checkpoints.mark_best(step, self.config.best_metric, self.state.best_score)
            self.checkpoints.rotate(self.config.keep_last)

    def elapsed_seconds(self) -> float:
        """Wall-clock time of the run, earlier sessions included."""
        return self.state.elapsed_seconds + time.monotonic() - self._began

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Time inside is not training: `away_seconds` grows by it."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.away_seconds += time.monotonic() - began

    def decide(self, interrupted: bool, due: bool) -> tuple[bool, bool]:
        """What all workers do next: whether the run stops here, and whether it is saved here.

        Args:
            interrupted: whether this worker was told to stop.
            due: whether this worker's clock or step count asks for a checkpoint.
        """
        asked = [interrupted, bool(self.reason_to_stop()), due]
        interrupted, over, due = (n > 0 for n in self.workers.totals([float(a) for a in asked]))
        self.interrupted |= interrupted
        return self.interrupted or over, due

    def reason_to_stop(self) -> str:
        """`"max_steps"`, `"max_minutes"`, `"early_stopping"`, or `""` to go on."""
        config = self.config
        if self.model.step >= config.max_steps:
            return "max_steps"
        if config.max_minutes and self.elapsed_seconds() >= config.max_minutes * 60:
            return "max_minutes"
        patience = config.early_stopping_patience
        if patience and self.state.rounds_without_improvement >= patience:
            return "early_stopping"
        return ""
