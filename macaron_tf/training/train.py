"""A whole run: resume, rounds of updates, validation, checkpoints, the end."""

import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import keras
import tensorflow as tf

from macaron_tf.distribution.strategy import Workers
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.progress import JsonLines, Progress, Reporter, TensorBoard
from macaron_tf.training.run import Interrupted, Interruptions, Run
from macaron_tf.training.updates import metrics_from_sums

Validate = Callable[[FitModel, int], Mapping[str, object]]


class StepCallback(keras.callbacks.Callback):
    """Calls `on_step` once for every update done.

    Keras's batch numbers begin anew each epoch, and a resumed round passes over the updates that
    were done before; `FitModel.step` is the one clock.
    """

    def on_train_begin(self, logs=None):
        self._seen = self.model.step

    def on_train_batch_end(self, batch, logs=None):
        if self.model.step != self._seen:
            self._seen = self.model.step
            self.on_step(self.model.step)

    def on_epoch_end(self, epoch, logs=None):
        self.on_round_end(self.model.step)

    def on_step(self, step: int) -> None:
        """Update number `step`, counted from 1, is done."""

    def on_round_end(self, step: int) -> None:
        """A round of updates, the last at `step`, is done."""


class Report(StepCallback):
    """Tells the reporters the training metrics every `log_every` updates.

    Nothing else in training waits for the device.
    """

    def __init__(self, run: Run):
        super().__init__()
        self._run = run

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._mark = (self.model.step, time.monotonic(), self._run.away_seconds)

    def on_step(self, step: int) -> None:
        for reporter in self._run.reporters:
            reporter.tick(step)
        if step % self._run.config.log_every and step != self._run.config.max_steps:
            return
        metrics = metrics_from_sums(self.model.window.totals())
        self.model.window.reset()
        last_step, last_time, last_away = self._mark
        self._mark = (step, time.monotonic(), self._run.away_seconds)
        seconds = self._mark[1] - last_time - (self._mark[2] - last_away)
        # Per update times updates: after a resume the window holds updates of an earlier session.
        # All that were read where the objective counts them: a masked model answers for 15%.
        tokens = metrics.get("input_tokens", metrics["tokens"]) * (step - last_step)
        timing = {
            "seconds": self._run.elapsed_seconds(),
            "tokens_per_second": tokens / max(seconds, 1e-9),
        }
        for reporter in self._run.reporters:
            reporter.train(step, metrics, timing)


class Validation(StepCallback):
    """Judges the model at the end of each round, and keeps the best score.

    Args:
        run: the run.
        validate: `validate(model, step) -> dict` of metrics by name, and optionally `"samples"`, a
            list of strings. Called with the moving average as weights, where one is kept.
        interruptions: a signal breaks a validation off; it is made up for after the resume. With
            several workers it is heard when the validation, which all are busy with, is over.
    """

    def __init__(self, run: Run, validate: Validate, interruptions: Interruptions):
        super().__init__()
        self._run = run
        self._validate = validate
        self._interruptions = interruptions

    def on_round_end(self, step: int) -> None:
        several = self._run.workers.several
        interrupted = self._run.interrupted
        if not several:
            interrupted |= self._interruptions.received is not None
        if self._run.state.validated_at == step or interrupted:
            return
        result = None
        breaking = nullcontext() if several else self._interruptions.breaking()
        # Breaking is innermost: a signal must not break off the swapping of weights.
        with self._run.away(), self.model.ema_weights(), breaking:
            result = dict(self._validate(self.model, step))
        if result is not None:
            self._judge(step, result)

    def _judge(self, step: int, result: dict) -> None:
        samples = result.pop("samples", [])
        metrics = {name: float(value) for name, value in result.items()}
        config, state = self._run.config, self._run.state
        if config.best_metric not in metrics:
            raise UserError(
                f"best_metric {config.best_metric!r} is none of the validation's metrics "
                f"({', '.join(metrics)})"
            )
        score = metrics[config.best_metric]
        sign = 1 if config.best_mode == "max" else -1
        better = state.best_score is None or sign * score > sign * state.best_score
        is_best = better and not math.isnan(score)
        if is_best:
            state.best_score, state.best_step = score, step
            state.rounds_without_improvement = 0
        else:
            state.rounds_without_improvement += 1
        state.validated_at = step
        self._run.metrics = metrics
        for reporter in self._run.reporters:
            reporter.validation(step, metrics, list(samples), is_best)


class Saving(StepCallback):
    """Saves by steps, by minutes, at a new best score and at the end; stops a run that is over.

    Comes after `Validation`, so that a checkpoint of a round's end knows its score.
    """

    def __init__(self, run: Run, interruptions: Interruptions):
        super().__init__()
        self._run = run
        self._interruptions = interruptions
        self._saved_time = time.monotonic()

    def on_step(self, step: int) -> None:
        over, due = self._decide(step)
        if over:
            self.model.stop_training = True  # Keras ends the round next
        elif due and step % self._run.config.validate_every:
            self._save()

    def on_round_end(self, step: int) -> None:
        over, due = self._decide(step)
        if over:
            self.model.stop_training = True
        if over or due or self._run.state.best_step == step:
            self._save()

    def _decide(self, step: int) -> tuple[bool, bool]:
        return self._run.decide(self._interruptions.received is not None, self._is_due(step))

    def on_train_end(self, logs=None):
        if self._run.saved_at != self.model.step:  # another callback stopped the run
            self._save()

    def _is_due(self, step: int) -> bool:
        config = self._run.config
        if config.save_every_steps and step % config.save_every_steps == 0:
            return True
        seconds = time.monotonic() - self._saved_time
        return bool(config.save_every_minutes) and seconds >= config.save_every_minutes * 60

    def _save(self) -> None:
        self._run.save()
        self._saved_time = time.monotonic()


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
