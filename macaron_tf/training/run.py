"""A run: its directory, its configuration, how far it is, and who is told."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from macaron_tf.errors import UserError
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.reporters import Reporter
from macaron_tf.training.state import (
    RunState,
    manifest_fields,
    restore_checkpoint,
    write_checkpoint,
)


class Run:
    """What the callbacks of a run share.

    Args:
        model: compiled and prepared.
        config: how long to train, when to save.
        run_dir: the run's directory, which exists.
        vocabulary_hash: kept in every checkpoint.
        reporters: told how the run goes.

    Attributes:
        state: scores and times; `RunState.elapsed_seconds` is as of the start or the resume.
        metrics: the last validation's.
    """

    def __init__(
        self,
        model: FitModel,
        config: TrainingConfig,
        run_dir: str | os.PathLike,
        vocabulary_hash: str,
        reporters: Sequence[Reporter],
    ):
        self.model = model
        self.config = config
        self.path = pathlib.Path(run_dir)
        self.vocabulary_hash = vocabulary_hash
        self.reporters = list(reporters)
        self.checkpoints = CheckpointDirectory(run_dir)
        self.state = RunState()
        self.metrics: Mapping[str, float] = {}
        self.saved_at: int | None = None
        self.away_seconds = 0.0
        # The monotonic clock: a run's budget must not jump with the machine's time of day.
        self._began = time.monotonic()

    def restore(self) -> None:
        """Goes on from the newest whole checkpoint, if there is one.

        Raises:
            UserError: it belongs to another model, vocabulary or optimizer.
        """
        self.checkpoints.clean()
        newest = self.checkpoints.latest()
        if newest is None:
            return
        self.state = restore_checkpoint(newest, self.model, self.vocabulary_hash)
        self.saved_at = self.model.step
        best = self.state.best_step
        # Killed after the checkpoint was renamed and before best.json was.
        if best is not None and self.checkpoints.of_step(best).is_dir():
            self.checkpoints.mark_best(best, self.config.best_metric, self.state.best_score)

    def save(self) -> None:
        """Writes a checkpoint of this moment, and deletes those that are too many.

        Raises:
            UserError: it cannot be written; the older ones are intact.
        """
        step = self.model.step
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
        self.saved_at = step

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


@contextlib.contextmanager
def only_writer(run_dir: pathlib.Path) -> Iterator[None]:
    """Keeps a second process from training in the same directory; ends with the process.

    Raises:
        UserError: another process is training there, or the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = open(run_dir / ".lock", "w")  # noqa: SIM115 (closed below, by `with file`)
    except OSError as error:
        raise UserError(
            f"cannot write the run directory {run_dir}: {error.strerror}; check its permissions "
            "or choose another"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process is training in {run_dir}: wait for it or choose another directory"
            ) from error
        yield
