"""How a model is trained, as one frozen value that is checked where it is made."""

import dataclasses
import math

from macaron_tf.errors import UserError

SCHEDULES = ("inverse_sqrt", "linear", "cosine", "constant")
# Down to 0 at the last update: their slope follows from `max_steps`.
ENDING_SCHEDULES = ("linear", "cosine")
OPTIMIZERS = ("adam", "adafactor")
DTYPE_POLICIES = ("float32", "mixed_bfloat16")
MODES = ("max", "min")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Everything about a run that is neither model nor data.

    Args:
        max_steps: updates (optimizer steps) of the whole run.
        seed: of weight initialization, dropout and the order of batches.
        learning_rate: the peak of the schedule.
        schedule: `"inverse_sqrt"`, `"linear"` or `"cosine"` (down to 0 at `max_steps`) or
            `"constant"`, each after the same warm-up.
        optimizer: `"adam"`, or `"adafactor"` (T5's): it has no betas and no epsilon, and the
            learning rate is a part of each weight's own root mean square.
        warmup_steps: updates of linear warm-up; 0 = none.
        warmup_start: learning rate of the very first update.
        beta_1: Adam's decay of the gradient's mean.
        beta_2: Adam's decay of the gradient's square.
        epsilon: Adam's, added to the root of the second moment.
        weight_decay: decoupled, times the learning rate; 0 = none.
        decay_vectors: whether biases and normalization weights (rank < 2) decay too, as fairseq's.
        clip_norm: greatest global norm of an update's gradient; None = no clipping.
        accumulation_steps: micro-batches in one update.
        steps_per_call: greatest number of updates in one call of the graph, see `FitModel`.
        dtype_policy: `"float32"` or `"mixed_bfloat16"`, for whoever builds the network.
        ema_decay: of the moving average of the weights; None = none is kept.
        log_every: updates between two lines of `metrics.jsonl`; the only waits for the device.
        validate_every: updates in a round; a round is Keras's epoch and ends with a validation.
        save_every_steps: updates between checkpoints; None = by time and best score only.
        save_every_minutes: minutes between checkpoints; None = by steps and best score only.
        keep_last: how many of the newest checkpoints stay; the best one stays besides.
        best_metric: name of the validation metric that decides which checkpoint is best.
        best_mode: `"max"` or `"min"`: which direction of `best_metric` is better.
        early_stopping_patience: validations without a better score before the run stops; None =
            never.
        max_minutes: wall-clock budget of the run, counted across resumes, validations and saves
            included; None = no limit.
        max_skipped_updates: updates with a NaN or infinite gradient are skipped; so many in a row
            stop the run.

    Raises:
        UserError: a field is out of its range; the sentence names the field.
    """

    max_steps: int = 100_000
    seed: int = 1
    learning_rate: float = 1.5e-3
    schedule: str = "inverse_sqrt"
    optimizer: str = "adam"
    warmup_steps: int = 8000
    warmup_start: float = 1e-7
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decay_vectors: bool = True
    clip_norm: float | None = None
    accumulation_steps: int = 1
    steps_per_call: int = 1
    dtype_policy: str = "float32"
    ema_decay: float | None = None
    log_every: int = 50
    validate_every: int = 1000
    save_every_steps: int | None = None
    save_every_minutes: float | None = 10.0
    keep_last: int = 5
    best_metric: str = "bleu"
    best_mode: str = "max"
    early_stopping_patience: int | None = None
    max_minutes: float | None = None
    max_skipped_updates: int = 10

    def __post_init__(self):
        for name in (
            "max_steps",
            "accumulation_steps",
            "steps_per_call",
            "log_every",
            "validate_every",
            "keep_last",
            "max_skipped_updates",
        ):
            self._require_integer(name, minimum=1)
        self._require_integer("seed", minimum=0)
        self._require_integer("warmup_steps", minimum=0)
        for name in ("save_every_steps", "early_stopping_patience"):
            if getattr(self, name) is not None:
                self._require_integer(name, minimum=1)
        for name in ("learning_rate", "epsilon"):
            self._require_number(name, positive=True)
        for name in ("warmup_start", "weight_decay"):
            self._require_number(name, positive=False)
        for name in ("clip_norm", "save_every_minutes", "max_minutes"):
            if getattr(self, name) is not None:
                self._require_number(name, positive=True)
        for name in ("beta_1", "beta_2", "ema_decay"):
            if getattr(self, name) is not None:
                self._require_number(name, positive=False)
                if getattr(self, name) >= 1:
                    raise UserError(f"{name} must be below 1, not {getattr(self, name)!r}")
        self._require_choice("schedule", SCHEDULES)
        self._require_choice("optimizer", OPTIMIZERS)
        self._require_choice("dtype_policy", DTYPE_POLICIES)
        self._require_choice("best_mode", MODES)
        if self.schedule in ENDING_SCHEDULES and self.warmup_steps >= self.max_steps:
            raise UserError(
                f"warmup_steps ({self.warmup_steps}) must be below max_steps ({self.max_steps}) "
                f"in the {self.schedule} schedule"
            )

    def _require_integer(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise UserError(f"{name} must be a whole number of at least {minimum}, not {value!r}")

    def _require_number(self, name: str, positive: bool) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):
            bound = "above 0" if positive else "of at least 0"
            raise UserError(f"{name} must be a number {bound}, not {value!r}")

    def _require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            options = ", ".join(choices)
            raise UserError(f"{name} must be one of {options}, not {getattr(self, name)!r}")
