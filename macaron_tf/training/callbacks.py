"""What happens between updates: reporting, validating, saving, stopping."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import keras

from macaron_tf.errors import UserError
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.interruption import Interruptions
from macaron_tf.training.run import Run
from macaron_tf.training.sums import metrics_from_sums

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
