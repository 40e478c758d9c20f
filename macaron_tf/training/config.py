"""Settings of a training run."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import keras
from annotated_types import Ge, Gt, Le, Lt

from macaron_tf.io.plug_ins import parse_call
from macaron_tf.settings import (
    Count,
    Dropout,
    Natural,
    NonNegative,
    OneOf,
    Positive,
    ReadIf,
    Settings,
)
from macaron_tf.training.keras_optimizers import KERAS, check_arguments

# Schedules whose decay ends at the last update, so that `max_steps` determines the slope.
ENDING_SCHEDULES = ("linear", "cosine")

OWN_SETTINGS = ("adam", "adafactor")  # optimizers whose arguments are fields of `TrainingConfig`
OPTIMIZERS = (*OWN_SETTINGS, *KERAS)

# Validation metrics of which a smaller value is better. Of all other metrics of this package, a
# greater value is better.
LOWER_IS_BETTER = {
    *("loss", "nll", "perplexity", "bits", "forward", "backward"),
    *("pair_loss", "replaced_loss", "span_boundary_loss"),
}

Decay = Annotated[float, Ge(0), Lt(1)]
_IF_ADAM = ReadIf(lambda recipe: recipe.training.optimizer == "adam")
_IF_ENDING = ReadIf(lambda recipe: recipe.training.schedule in ENDING_SCHEDULES)
Rate = Annotated[float, Ge(1.2e-38)]  # float32 rounds most lesser numbers to 0


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
    """Settings of optimizer, learning rate schedule, validation, checkpoints and stopping.

    Attributes:
        max_steps: total number of updates (optimizer steps).
        seed: random seed for weight initialization, dropout and batch order.
        learning_rate: peak learning rate.
        schedule: learning rate schedule after the warm-up. `"inverse_sqrt"` decays with the inverse
            square root of the step, `"linear"` and `"cosine"` reach `schedule_end` at `max_steps`,
            and `"constant"` keeps the peak.
        schedule_end: final learning rate of the linear and cosine schedules.
        optimizer: optimizer name, with arguments if there are any, such as `"sgd(momentum=0.9)"`.
            The names are `"adam"`, `"adafactor"`, the Keras optimizers `"lion"`, `"muon"` and
            `"sgd"`, and `"package.module:Name"` for your own subclass of
            `keras.optimizers.Optimizer`. `"adam"` and `"adafactor"` take no arguments. Adafactor
            has T5's settings and multiplies the learning rate by each weight's root mean square.
            Other settings of this section set learning rate, weight decay, clipping and averaging.
        warmup_steps: number of updates with linear warm-up; 0 means no warm-up.
        warmup_start: learning rate of the first warm-up update.
        beta_1: exponential decay rate of Adam's first moment.
        beta_2: exponential decay rate of Adam's second moment.
        epsilon: constant that Adam adds to the square root of the second moment.
        weight_decay: decoupled weight decay, multiplied by the learning rate; 0 means no decay.
        decay_vectors: whether weight decay also applies to biases, normalization weights and other
            vectors, as in fairseq.
        clip_norm: maximum global norm of an update's gradient; `None` means no clipping.
        accumulation_steps: number of micro-batches per update (gradient accumulation).
        steps_per_call: maximum number of updates per call of the compiled graph. The JAX engine
            ignores `steps_per_call`.
        dtype_policy: Keras dtype policy of the network.
        ema_decay: decay rate for an exponential moving average of the weights; `None` means no
            average.
        log_every: number of updates between two training lines of `metrics.jsonl`. Between log
            lines, validations and checkpoints, the host does not wait for the device.
        validate_every: number of updates between validations, which is also the length of a Keras
            epoch.
        save_every_steps: number of updates between checkpoints; `None` means that checkpoints do
            not depend on the number of updates.
        save_every_minutes: minutes between checkpoints; `None` means that checkpoints do not depend
            on the time.
        keep_last: number of newest checkpoints to keep, in addition to the best checkpoint.
        best_metric: validation metric that selects the best checkpoint. Of equal values, the value
            with the lower loss is better, and then the value of the later step.
        best_mode: whether the greatest (`"max"`) or the smallest (`"min"`) `best_metric` is best,
            for a metric of your own. `None` means that a smaller value is better for losses and
            perplexities, and a greater value for all other metrics.
        early_stopping_patience: number of consecutive validations without a better score that stops
            the run; `None` means no early stopping.
        max_minutes: maximum wall-clock time of the run in minutes, including validations, saves and
            earlier sessions; `None` means no limit.
        max_skipped_updates: number of consecutive skipped updates that ends the run with an error.
            An update is skipped if its loss or gradient is NaN or infinite, or if no label counts
            in its loss.
        frozen: substrings of weight paths, such as `("embedding",)`. A weight is not trained if its
            path contains one of the substrings.
    """

    section: ClassVar[str] = "training"

    max_steps: Count = 100_000
    seed: Natural = 1
    learning_rate: Rate = 1.5e-3
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    schedule_end: Annotated[NonNegative, _IF_ENDING] = 0.0
    optimizer: Annotated[
        str, OneOf(OPTIMIZERS, keras.optimizers.Optimizer, takes_arguments=True)
    ] = "adam"
    warmup_steps: Natural = 8000
    warmup_start: NonNegative = 1e-7
    beta_1: Annotated[Decay, _IF_ADAM] = 0.9
    beta_2: Annotated[Decay, _IF_ADAM] = 0.98
    epsilon: Annotated[Positive, _IF_ADAM] = 1e-8
    weight_decay: NonNegative = 0.0
    decay_vectors: bool = True
    clip_norm: Positive | None = None
    accumulation_steps: Annotated[int, Ge(1), Le(10_000)] = 1  # limits the graph size on a TPU
    steps_per_call: Count = 1
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    ema_decay: Decay | None = None
    log_every: Count = 50
    validate_every: Count = 1000
    save_every_steps: Count | None = None
    save_every_minutes: Positive | None = 10.0
    keep_last: Count = 5
    best_metric: str = "bleu"
    best_mode: Literal["max", "min"] | None = None
    early_stopping_patience: Count | None = None
    max_minutes: Positive | None = None
    max_skipped_updates: Count = 10
    frozen: tuple[str, ...] = ()

    def check(self) -> None:
        name, arguments = parse_call(self.optimizer)
        if name not in OWN_SETTINGS:
            check_arguments(name, arguments)
        elif arguments:
            raise self.error(f"optimizer={name} takes no arguments: set training.beta_1 and so on")
        end, rate, steps = self.schedule_end, self.learning_rate, self.max_steps
        if self.schedule in ENDING_SCHEDULES and self.warmup_steps >= steps:
            raise self.error(f"warmup_steps={self.warmup_steps} must be below max_steps={steps}")
        if end and end >= rate:
            raise self.error(f"schedule_end={end} must be below learning_rate={rate}")


@dataclasses.dataclass(frozen=True)
class EpochTraining(TrainingConfig):
    """Training settings with the length in epochs, which are passes over the training set.

    When the size of the training set is known, `EpochRecipe.resolved` converts epochs and fractions
    into update counts. The run's recipe.json contains both. If a user sets `max_steps`,
    `warmup_steps` or `validate_every`, the corresponding setting `epochs`, `warmup_fraction` or
    `validate_epochs` becomes `None`.

    Attributes:
        epochs: number of passes over the training set; `None` means `max_steps` updates.
        warmup_fraction: fraction of all updates that is warm-up; `None` means `warmup_steps`
            updates.
        validate_epochs: number of epochs between validations; `None` means `validate_every`
            updates.
        lora_rank: rank of low-rank updates (LoRA) of the projections to attention heads, with
            frozen pre-trained weights; 0 means that all weights are trained. See
            `macaron_tf.training.lora`.
    """

    epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 3.0
    warmup_fraction: Dropout | None = 0.1
    validate_epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 1.0
    lora_rank: Natural = 0


def fine_tuning(learning_rate: float, **changes: Any) -> EpochTraining:
    """Returns settings for fine-tuning: AdamW and a linear decay of the learning rate to 0.

    The hyperparameters of AdamW are BERT's. Unlike in BERT, weight decay also applies to biases and
    normalization weights, and AdamW corrects the bias of its moments.
    """
    settings: dict[str, Any] = dict(schedule="linear", warmup_steps=0, warmup_start=0.0)
    # keep_last=1 saves disk space, because a checkpoint is 3 times as large as the model.
    settings |= dict(beta_2=0.999, epsilon=1e-6, weight_decay=0.01, keep_last=1)
    return EpochTraining(learning_rate=learning_rate, **settings | changes)
