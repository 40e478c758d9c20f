"""A whole run: resume, rounds of updates, validation, checkpoints, the end."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.folder_lock import only_writer
from macaron_tf.distribution.workers import Workers
from macaron_tf.errors import UserError
from macaron_tf.training.callbacks import Report, Saving, Validate, Validation
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.interruption import Interrupted, Interruptions
from macaron_tf.training.progress import Progress
from macaron_tf.training.reporters import JsonLines, Reporter
from macaron_tf.training.run import Run
from macaron_tf.training.tensorboard import TensorBoard


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        step: updates done.
        reason: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or `"callback"`.
        best_step: step of the best checkpoint; None without validation.
        best_score: its score.
        elapsed_seconds: wall-clock time, earlier sessions included.
        checkpoint: the last checkpoint.
        best_checkpoint: the best one; None without validation.
    """

    step: int
    reason: str
    best_step: int | None
    best_score: float | None
    elapsed_seconds: float
    checkpoint: pathlib.Path
    best_checkpoint: pathlib.Path | None


def train(
    model: FitModel,
    train_dataset_fn: Callable[[int], tf.data.Dataset],
    config: TrainingConfig,
    run_dir: str | os.PathLike,
    validate: Validate | None = None,
    vocabulary_hash: str = "",
    callbacks: Sequence[keras.callbacks.Callback] = (),
    reporters: Sequence[Reporter] | None = None,
    on_start: Callable[[], None] | None = None,
) -> TrainingResult:
    """Trains with `model.fit` until the configuration says stop; goes on where a run left off.

    A Keras epoch is a round of `validate_every` updates. The resumed run is the uninterrupted one
    to the bit: weights, optimizer, dropout, data and `metrics.jsonl`.

    Args:
        model: compiled; its network built. See `build_fit_model`.
        train_dataset_fn: `train_dataset_fn(start)` gives the endless dataset of micro-batches
            that begins with micro-batch number `start` (updates done times accumulation_steps).
        config: see `TrainingConfig`.
        run_dir: created if absent; the run found there is continued.
        validate: `validate(model, step) -> dict` of metrics, and optionally `"samples"`, a list of
            strings; called at the end of each round with the moving average as weights, where one
            is kept.
        vocabulary_hash: kept in each checkpoint; a run of another vocabulary is refused.
        callbacks: further Keras callbacks. Their logs are full at log and round ends, else empty.
        reporters: who is told; None = `metrics.jsonl`, TensorBoard and progress on stdout.
        on_start: called once the directory is this process's alone and its newest checkpoint is
            accepted: the moment to write files of one's own there.

    Raises:
        UserError: see the message.
        Interrupted: (a SystemExit, 128 + signal) stopped by Ctrl-C or SIGTERM, after saving.
    """
    run_dir = storage.as_path(run_dir)
    if config.early_stopping_patience and validate is None:
        raise UserError("early_stopping_patience needs a validation set")
    if model.accumulation_steps != config.accumulation_steps:
        raise ValueError("the model's accumulation_steps are not the configuration's")
    model.prepare()
    workers = Workers(model.updates.strategy)
    alone = only_writer(run_dir, "training") if workers.chief else contextlib.nullcontext()
    with alone, workers.watched(), Interruptions() as interruptions:
        if not workers.chief:
            reporters = []
        elif reporters is None:
            progress = Progress(config.max_steps, config.max_minutes)
            reporters = [JsonLines(run_dir), TensorBoard(run_dir), progress]
        run = Run(model, config, run_dir, vocabulary_hash, reporters, workers)
        run.restore()
        if on_start and workers.chief:
            on_start()
        judging = [Validation(run, validate, interruptions)] if validate is not None else []
        saving = Saving(run, interruptions)
        try:
            for reporter in run.reporters:
                reporter.start(model.step, run.state.validated_at)
            if judging and _owes_validation(run):
                for callback in (*judging, saving):
                    callback.set_model(model)
                    callback.on_round_end(model.step)
            if not run.decide(interruptions.received is not None, due=False)[0]:
                _fit(run, train_dataset_fn, [Report(run), *judging, *callbacks, saving])
        finally:
            for reporter in run.reporters:
                reporter.finish()
        workers.totals([0.0])  # the chief has written when all are here
        if run.interrupted or interruptions.received is not None:
            print(
                f"interrupted: step {model.step} is saved in {run_dir}; "
                "run the same command again to go on",
                file=sys.stderr,
            )
            raise Interrupted(interruptions.received or signal.SIGTERM, model.step)
        return _result(run)


def _owes_validation(run: Run) -> bool:
    """Whether the run was left after a round's last update and before its validation."""
    step = run.model.step
    at_end = step % run.config.validate_every == 0 or bool(run.reason_to_stop())
    return step > 0 and at_end and run.state.validated_at != step


def _fit(run: Run, train_dataset_fn, callbacks) -> None:
    """The updates that are left, the rest of a begun round first."""
    model, config, step = run.model, run.config, run.model.step
    model.endless = True
    looks = [config.log_every, config.validate_every, config.max_steps]
    looks += [config.save_every_steps] if config.save_every_steps else []
    model.returns_logs = lambda step: (
        step % config.log_every == 0
        or step % config.validate_every == 0
        or step == config.max_steps
    )
    model.steps_left = lambda step: min(every - step % every for every in looks)
    model.calls_to_pass = step % config.validate_every
    model.fit(
        train_dataset_fn(step * config.accumulation_steps),
        initial_epoch=step // config.validate_every,
        epochs=-(-config.max_steps // config.validate_every),
        steps_per_epoch=config.validate_every,
        callbacks=callbacks,
        verbose=0,
    )


def _result(run: Run) -> TrainingResult:
    best = run.checkpoints.best()
    return TrainingResult(
        step=run.model.step,
        reason=run.reason_to_stop() or "callback",
        best_step=run.state.best_step,
        best_score=run.state.best_score,
        elapsed_seconds=run.elapsed_seconds(),
        checkpoint=run.checkpoints.of_step(run.saved_at),
        best_checkpoint=run.checkpoints.of_step(best["step"]) if best else None,
    )
