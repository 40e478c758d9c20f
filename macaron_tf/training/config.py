"""Settings of a training run."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import keras
from annotated_types import Ge, Le, Lt

from macaron_tf.plug_ins import parse_call
from macaron_tf.settings import Count, Natural, NonNegative, OneOf, Positive, Settings
from macaron_tf.training.keras_optimizers import KERAS, check_arguments

# Schedules that end at the last update, so that their slope depends on `max_steps`.
ENDING_SCHEDULES = ("linear", "cosine")

OWN_SETTINGS = ("adam", "adafactor")  # optimizers whose arguments are fields of `TrainingConfig`
OPTIMIZERS = (*OWN_SETTINGS, *KERAS)

Decay = Annotated[float, Ge(0), Lt(1)]


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
    """Settings of a run that concern neither the model nor the data.

    Attributes:
        max_steps: updates (optimizer steps) of the whole run.
        seed: seed of weight initialization, dropout and the order of batches.
        learning_rate: peak of the schedule.
        schedule: decay after the warm-up: `"inverse_sqrt"`, `"constant"`, or `"linear"` or
            `"cosine"` down to `schedule_end` at `max_steps`.
        schedule_end: learning rate at the end of a linear or cosine schedule.
        optimizer: `"adam"`; `"adafactor"`, T5's, without betas and epsilon, whose learning rate is
            relative to each weight's root mean square; Keras's `"lion"`, `"muon"`,
            `"schedule_free_adamw"` or `"sgd"`; or your own `keras.optimizers.Optimizer` as
            `package.module:Name`. Keras's and your own take arguments, as in `"sgd(momentum=0.9)"`;
            learning rate, weight decay, clipping and averages are settings of their own.
        warmup_steps: updates of linear warm-up; 0: no warm-up.
        warmup_start: learning rate of the first update.
        beta_1: Adam's decay of the first moment.
        beta_2: Adam's decay of the second moment.
        epsilon: term that Adam adds to the root of the second moment.
        weight_decay: decoupled weight decay, multiplied by the learning rate; 0: no decay.
        decay_vectors: whether biases, normalization weights and a gMLP's kernel by distances
            decay too, as in fairseq.
        clip_norm: limit of the global norm of an update's gradient; None: no clipping.
        accumulation_steps: micro-batches in one update.
        steps_per_call: most updates in one call of the graph, see `FitModel`.
        dtype_policy: Keras dtype policy under which the caller builds the network.
        ema_decay: decay of the moving average of the weights; None: no average.
        log_every: updates between two lines of `metrics.jsonl`. The host waits for the device only
            when it logs.
        validate_every: updates between validations, the length of a Keras epoch.
        save_every_steps: updates between checkpoints; None: by time and best score only.
        save_every_minutes: minutes between checkpoints; None: by steps and best score only.
        keep_last: number of newest checkpoints to keep besides the best one.
        best_metric: validation metric that selects the best checkpoint.
        best_mode: whether a greater (`"max"`) or smaller (`"min"`) `best_metric` is better.
        early_stopping_patience: validations without a better score after which the run stops; None:
            never.
        max_minutes: wall-clock budget of the run across resumes, validations and saves included;
            None = no limit.
        max_skipped_updates: skipped updates (NaN or infinite gradient) in a row that stop the run.
        frozen: parts of the paths of weights that are not trained, such as `("embedding",)`.
    """

    section: ClassVar[str] = "training"

    max_steps: Count = 100_000
    seed: Natural = 1
    learning_rate: Positive = 1.5e-3
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    schedule_end: NonNegative = 0.0
    optimizer: Annotated[str, OneOf(OPTIMIZERS, keras.optimizers.Optimizer, called=True)] = "adam"
    warmup_steps: Natural = 8000
    warmup_start: NonNegative = 1e-7
    beta_1: Decay = 0.9
    beta_2: Decay = 0.98
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    decay_vectors: bool = True
    clip_norm: Positive | None = None
    accumulation_steps: Annotated[int, Ge(1), Le(10_000)] = 1  # one graph node each
    steps_per_call: Count = 1
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    ema_decay: Decay | None = None
    log_every: Count = 50
    validate_every: Count = 1000
    save_every_steps: Count | None = None
    save_every_minutes: Positive | None = 10.0
    keep_last: Count = 5
    best_metric: str = "bleu"
    best_mode: Literal["max", "min"] = "max"
    early_stopping_patience: Count | None = None
    max_minutes: Positive | None = None
    max_skipped_updates: Count = 10
    frozen: tuple[str, ...] = ()

    def check(self) -> None:
        name, arguments = parse_call(self.optimizer)
        if name not in OWN_SETTINGS:
            check_arguments(name, arguments)
        elif arguments:
            raise self.error(
                f"optimizer={self.optimizer!r}: {name} takes no arguments; Adam's are the settings "
                "beta_1, beta_2 and epsilon"
            )
        if name == "schedule_free_adamw" and self.ema_decay is not None:
            raise self.error(
                f"ema_decay={self.ema_decay} has no effect: schedule_free_adamw averages the "
                "weights by itself; leave it out"
            )
        if self.schedule in ENDING_SCHEDULES and self.warmup_steps >= self.max_steps:
            raise self.error(
                f"warmup_steps={self.warmup_steps} must be below training.max_steps="
                f"{self.max_steps} in the {self.schedule} schedule: shorten it, or train for more "
                "updates"
            )
        end, falls = self.schedule_end, self.schedule in ENDING_SCHEDULES
        if end and not (falls and end < self.learning_rate):
            raise self.error(
                f"schedule_end={end} must be below training.learning_rate={self.learning_rate}, in "
                f"the linear or cosine schedule, not {self.schedule}"
            )


def fine_tuning(learning_rate: float, **changes: Any) -> TrainingConfig:
    """Settings of BERT's Adam for fine-tuning, with linear decay to 0.

    The caller sets the number of steps and the warm-up, which depend on the epochs.
    """
    settings = dict(schedule="linear", warmup_steps=0, warmup_start=0.0, beta_2=0.999)
    # A checkpoint is 3 times as large as the model, and the best one is kept besides.
    settings |= dict(epsilon=1e-6, weight_decay=0.01, keep_last=1)
    return TrainingConfig(learning_rate=learning_rate, **settings | changes)
