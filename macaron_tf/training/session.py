"""Training runs around `model.fit`: resuming, validation, checkpoints and stopping."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import keras
import tensorflow as tf

from macaron_tf.distribution import Workers, spread_seeds
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer
from macaron_tf.io.progress import Progress
from macaron_tf.io.signals import RepeatedSignals, announced
from macaron_tf.training.checkpoints import CheckpointDirectory, is_checkpoint
from macaron_tf.training.config import LOWER_IS_BETTER
from macaron_tf.training.progress import TRAIN, VALIDATION, RunLog, TrainingBar
from macaron_tf.training.state import (
    RunState,
    gather_memory,
    restore_checkpoint,
    weight_table,
    write_checkpoint,
)
from macaron_tf.training.trained_model import TrainedModel
from macaron_tf.training.updates import Sums, metrics_from_sums

Validate = Callable[[TrainedModel, int], Mapping[str, object]]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """`SystemExit` that `train` raises after a signal has stopped the run.

    `train` saves a checkpoint before it raises this exception, unless the run has made no update.
    The exit status is 128 plus the number of the signal, as in a shell: 130 for Ctrl-C, and 143 for
    SIGTERM. User code's `except Exception` does not catch it.
    """

    def __init__(self, signal_number: int):
        super().__init__(128 + signal_number)


class Interruptions(contextlib.ExitStack):
    """Context manager in which SIGINT and SIGTERM set `received`, so that the run can save.

    A line on stderr announces the stop at once. A signal that arrives again after a second or more
    ends the process at once (see `RepeatedSignals`). Python delivers signals only to the main
    thread. In other threads, the context manager has no effect.

    Attributes:
        received: number of the first signal; `None` if no signal has arrived.
    """

    received: int | None = None
    _raises = False

    def __enter__(self) -> Self:
        self._is_repeated = RepeatedSignals()
        if threading.current_thread() is threading.main_thread():
            self.enter_context(announced("stopping after this step", SIGNALS))
            for number in SIGNALS:
                self.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """Ends the `with` block as soon as the first signal arrives, without raising an exception.

        Errors after a signal are ignored: `keras.ops.shape` catches any exception, also a signal's,
        and leaves `None` in the shape, so that tracing fails with another error. A repeated Ctrl-C
        is not ignored.
        """
        self._raises = True
        try:
            yield
        except Interrupted:
            pass
        except Exception:
            if self.received is None:
                raise
        finally:
            self._raises = False

    def _handle(self, signal_number, frame) -> None:
        if self._is_repeated(signal_number):
            self.close()  # restores the earlier handlers
            signal.raise_signal(signal_number)
        elif self.received is None:
            self.received = signal_number
            if self._raises:
                raise Interrupted(signal_number)


class TrainingSession(keras.callbacks.Callback):
    """Keras callback that reports, validates, saves and stops a run in one process.

    The callback counts updates by `TrainedModel.step`, because Keras's batch numbers restart in
    each epoch. `run_dir` must exist. `train` explains further arguments.

    Args:
        model: compiled model, after `TrainedModel.prepare`. `model.config` has the run's settings.
        interruptions: signal handler. A signal ends a running validation, and the resumed run
            repeats the validation. With several workers, the validation is completed first.

    Attributes:
        state: scores and times of the run. During the session, `state.elapsed_seconds` is the time
            of earlier sessions.
        interrupted: whether any worker has received a signal to stop, as of the last `decide`.
        saved_at: step of the last checkpoint that this session read or wrote.
        log, bar: displays of the progress, which only the chief process has.
    """

    log: RunLog | None = None
    bar: TrainingBar | None = None
    compiling: Progress

    def __init__(
        self,
        model: TrainedModel,
        run_dir: str | os.PathLike,
        vocabulary_hash: str,
        validate: Validate | None,
        workers: Workers,
        interruptions: Interruptions,
    ):
        super().__init__()
        self.set_model(model)
        self.config = model.config
        self.vocabulary_hash = vocabulary_hash
        self.validate = validate
        self.workers = workers
        self.interruptions = interruptions
        self.checkpoints = CheckpointDirectory(run_dir)
        self.state = RunState()
        self.interrupted = False
        self.saved_at: int | None = None
        self._metrics: dict[str, float] = {}  # metrics of the last validation
        # The time of day may jump. The monotonic clock does not jump. The time of the last report
        # moves on with the seconds spent in validations and saves.
        self._began = self._saved_time = self._reported_time = time.monotonic()

    def restore(self) -> None:
        """Restores the newest undamaged checkpoint, if there is one."""
        step = 0.0
        if self.workers.chief:
            self.checkpoints.clean()
            newest = self.checkpoints.latest()
            step = float(newest.name.removeprefix("step-")) if newest else -1.0
        # All workers restore the checkpoint that the chief chose.
        (step,) = self.workers.totals([step])
        if step < 0:
            return
        checkpoint = self.checkpoints.of_step(int(step))
        self.state = restore_checkpoint(checkpoint, self.model, self.vocabulary_hash, self.workers)
        spread_seeds(self.model.strategy, self.model.seed_states)
        self.saved_at, best = self.model.step, self.state.best_step
        # A process that was killed after saving the checkpoint may not have written best.json.
        if self.workers.chief and best and is_checkpoint(self.checkpoints.of_step(best)):
            self.checkpoints.mark_best(best, self.config.best_metric, self.state.best_score)

    def save(self) -> None:
        """Saves a checkpoint and deletes surplus ones. Every worker calls it, the chief writes."""
        began, step = time.monotonic(), self.model.step
        memory = gather_memory(self.model, self.workers)
        with self.model.gathered():
            if self.log:
                self.log.sync()
                state = dataclasses.replace(self.state, elapsed_seconds=self.elapsed_seconds())
                manifest = {
                    "vocabulary": self.vocabulary_hash,
                    "metrics": self._metrics if state.validated_at == step else {},
                    "weights": weight_table(self.model.network),
                }
                parts = {"model": self.model, "state": state, "memory": memory}
                self.checkpoints.save(step, functools.partial(write_checkpoint, **parts), manifest)
                if state.best_step == step:
                    self.checkpoints.mark_best(step, self.config.best_metric, state.best_score)
                self.checkpoints.rotate(self.config.keep_last)
        self.saved_at, self._saved_time = step, time.monotonic()
        self._reported_time += self._saved_time - began

    def elapsed_seconds(self) -> float:
        """Returns the wall-clock time of the run in seconds, including earlier sessions."""
        return self.state.elapsed_seconds + time.monotonic() - self._began

    def reason_to_stop(self) -> str:
        """Returns `"max_steps"`, `"max_minutes"` or `"early_stopping"`, or "" to continue."""
        config = self.config
        if self.model.step >= config.max_steps:
            return "max_steps"
        # Even the shortest time limit allows one update.
        max_minutes = config.max_minutes if self.model.step else None
        if max_minutes and self.elapsed_seconds() >= max_minutes * 60:
            return "max_minutes"
        patience = config.early_stopping_patience
        if patience and self.state.rounds_without_improvement >= patience:
            return "early_stopping"
        return ""

    def decide(self) -> tuple[bool, bool]:
        """Returns whether the run stops, and whether a checkpoint is due, for any worker."""
        save_every, minutes = self.config.save_every_steps, self.config.save_every_minutes
        due = save_every is not None and self.model.step % save_every == 0
        due |= minutes is not None and time.monotonic() - self._saved_time >= minutes * 60
        requests = [self.interruptions.received is not None, bool(self.reason_to_stop()), due]
        interrupted, stops, due = (n > 0 for n in self.workers.totals([float(a) for a in requests]))
        self.interrupted |= interrupted
        return self.interrupted or stops, due

    def on_train_begin(self, logs=None):
        self._reported_step, self._reported_time = self.model.step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        step = self.model.step
        self.compiling.end()
        if self.bar:
            self.bar.tick(step)
        if step % self.config.log_every == 0 or step == self.config.max_steps:
            metrics = metrics_from_sums(self.model.window.totals())
            self.model.window = Sums()
            now = time.monotonic()
            # Multiply tokens per update by updates, because after a resume the window includes
            # updates of an earlier session. Prefer input tokens, because MLM predicts only 15% of
            # the tokens.
            updates = step - self._reported_step
            tokens = metrics.get("input_tokens", metrics["tokens"]) * updates
            seconds = max(now - self._reported_time, 1e-9)
            self._reported_step, self._reported_time = step, now
            timing = {"seconds": self.elapsed_seconds(), "tokens_per_second": tokens / seconds}
            if cost := self.model.cost:
                timing["flops_per_update"] = cost.flops
                timing["flops_per_token"] = cost.flops * updates / max(tokens, 1)
                if cost.peak:
                    timing["mfu"] = cost.flops * updates / seconds / cost.peak
            # Not `getrusage`, which includes memory of the parent process.
            status = pathlib.Path("/proc/self/status")
            if status.exists() and (peak := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
                timing["memory_mib"] = int(peak[1]) / 2**10
            if self.log and self.bar:
                self.log.write(TRAIN, step, metrics, timing)
                self.bar.train(step, metrics, timing)
        stops, due = self.decide()
        if stops:
            self.model.stop_training = True  # `fit` then calls `on_epoch_end`
        elif due and step % self.config.validate_every:
            self.save()

    def on_epoch_end(self, epoch=None, logs=None):
        """Saves if a checkpoint is due, or with the best score, which `fit` has just validated."""
        stops, due = self.decide()
        if stops:
            self.model.stop_training = True
        if stops or due or self.state.best_step == self.model.step:
            self.save()

    def validate_round(self) -> dict[str, float]:
        """Validates, and returns the metrics, or {} if a signal is stopping the run."""
        step, config, state = self.model.step, self.config, self.state
        # A signal must not stop the validation of only one of several workers.
        interruptions = Interruptions() if self.workers.several else self.interruptions
        if self.interrupted or interruptions.received:
            return {}
        began = time.monotonic()
        result: dict = {}
        # `breaking` is innermost, because a signal must not interrupt the swap of the weights.
        with Progress("validating"), self.model.ema_weights(), interruptions.breaking():
            result = dict(self.validate(self.model, step))
        self._reported_time += time.monotonic() - began
        if interruptions.received:
            return {}
        samples = list(result.pop("samples", []))
        self._metrics = metrics = {name: float(value) for name, value in result.items()}
        if config.best_metric not in metrics:
            raise UserError(f"best_metric={config.best_metric!r} is none of {', '.join(metrics)}")
        score, loss = metrics[config.best_metric], metrics.get("loss", math.inf)
        loss = math.inf if math.isnan(loss) else loss
        known_mode = "min" if config.best_metric in LOWER_IS_BETTER else "max"
        sign, best = -1 if (config.best_mode or known_mode) == "min" else 1, state.best_score
        improves = not math.isnan(score) and (best is None or sign * score > sign * best)
        # Early stopping does not count a lower loss at an equal score as an improvement.
        is_best = improves or (score == best and loss <= state.best_loss)
        if is_best:
            state.best_score, state.best_loss, state.best_step = score, loss, step
        state.rounds_without_improvement = 0 if improves else state.rounds_without_improvement + 1
        state.validated_at = step
        if self.log and self.bar:
            self.log.write(VALIDATION, step, metrics, samples=samples)
            self.bar.validation(step, metrics, is_best)
        return metrics


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """Result of a run.

    Attributes:
        step: number of updates.
        reason: why the run ended: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or
            `"callback"`. `"callback"` means that one of the caller's callbacks stopped the run.
        best_step: step of the best validation score; `None` if no validation had a score other
            than NaN.
        best_score: best validation score; `None` if `best_step` is `None`.
        elapsed_seconds: wall-clock time in seconds, including earlier sessions.
    """

    step: int
    reason: str
    best_step: int | None
    best_score: float | None
    elapsed_seconds: float


def train(
    model: TrainedModel,
    train_dataset_fn: Callable[[int], tf.data.Dataset],
    run_dir: str | os.PathLike,
    validate: Validate | None = None,
    vocabulary_hash: str = "",
    callbacks: Sequence[keras.callbacks.Callback] = (),
    on_start: Callable[[], None] | None = None,
) -> TrainingResult:
    """Trains with `model.fit` and the settings in `model.config`, or resumes a run in `run_dir`.

    A Keras epoch has `validate_every` updates. A resumed run is bit-identical to an uninterrupted
    run in weights, optimizer state, dropout, data order and `metrics.jsonl`. Progress is written to
    `metrics.jsonl`, `timing.jsonl`, TensorBoard and stdout.

    Too many consecutive skipped updates raise `Diverged`. Ctrl-C and SIGTERM raise `Interrupted`,
    after a checkpoint if there was an update.

    Args:
        model: compiled model with a built network, see `build_fit_model`.
        train_dataset_fn: function from a micro-batch index to an endless dataset of micro-batches
            that begins at this index.
        validate: function `validate(model, step)` that returns a dict of metrics, perhaps with
            `"samples"`, a list of strings, at the end of each epoch. If the run has a moving
            average, the network then has the averaged weights.
        vocabulary_hash: hash in each checkpoint, with which alone a run can resume.
        callbacks: further Keras callbacks. The logs of a batch are empty except at logging steps,
            validations and saves at fixed steps. The logs of an epoch include validation metrics,
            such as `val_loss`.
        on_start: function that the chief process calls once before the first update, after the run
            directory is locked and the newest checkpoint is restored.
    """
    run_dir, config = storage.as_path(run_dir), model.config
    if config.early_stopping_patience and validate is None:
        raise UserError("training.early_stopping_patience needs a validation set: give one")
    model.prepare()
    workers = Workers(model.strategy)
    lock = only_writer(run_dir, "training") if workers.chief else contextlib.nullcontext()
    with lock, workers.watched(), Interruptions() as interruptions:
        session = TrainingSession(model, run_dir, vocabulary_hash, validate, workers, interruptions)
        session.restore()
        if on_start and workers.chief:
            on_start()
        step, validated_at = model.step, session.state.validated_at
        with contextlib.ExitStack() as exit_stack:
            if workers.chief:
                session.log = RunLog(run_dir, step, validated_at)
                exit_stack.callback(session.log.sync)
                session.bar = TrainingBar(config.max_steps, config.max_minutes, step)
                exit_stack.callback(session.bar.close)
            at_end = step % config.validate_every == 0 or session.reason_to_stop()
            if validate is not None and step and at_end and validated_at != step:
                session.validate_round()  # the earlier session stopped before this validation
                session.on_epoch_end()
            if not session.decide()[0]:
                save_every = config.save_every_steps or config.max_steps
                stops = config.log_every, config.validate_every, save_every, config.max_steps
                session.compiling = Progress("compiling the first update")
                with session.compiling:
                    # A resumed run continues in the middle of its epoch.
                    model.fit(
                        train_dataset_fn(step * config.accumulation_steps),
                        initial_epoch=step // config.validate_every,
                        first_step=step % config.validate_every,
                        epochs=-(-config.max_steps // config.validate_every),
                        steps_per_epoch=config.validate_every,
                        callbacks=[*callbacks, session],
                        validate=validate and session.validate_round,
                        verbose=0,
                        stops=stops,
                    )
                if session.saved_at != model.step:  # another callback stopped the run
                    session.save()
        workers.totals([0.0])  # a barrier that waits until the chief has written
        if session.interrupted or interruptions.received is not None:
            saved = f"step {model.step} is saved in {run_dir}" if model.step else "nothing is saved"
            end = "continue" if model.step else "start the run"
            print(f"interrupted: {saved}; run the same command again to {end}", file=sys.stderr)
            raise Interrupted(interruptions.received or signal.SIGTERM)
        return TrainingResult(
            step=model.step,
            reason=session.reason_to_stop() or "callback",
            best_step=session.state.best_step,
            best_score=session.state.best_score,
            elapsed_seconds=session.elapsed_seconds(),
        )
