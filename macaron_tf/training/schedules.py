"""Learning rates as functions of the number of updates done so far."""

import math

import keras
from keras import ops

from macaron_tf.training.config import TrainingConfig


@keras.saving.register_keras_serializable(package="macaron_tf")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear from `start` to `peak` over `warmup_steps` updates, then `decay`.

    The first update sees step 0, hence `start`: the update after n others is made with
    `start + n * (peak - start) / warmup_steps`, as in fairseq.

    Args:
        peak: the learning rate at the end of the warm-up.
        warmup_steps: updates of warm-up; 0 = none.
        start: the learning rate of the first update.
    """

    def __init__(self, peak: float, warmup_steps: int = 0, start: float = 0.0):
        super().__init__()
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.start = start

    def decay(self, step):
        """The learning rate at float `step >= warmup_steps`; constant here."""
        return self.peak * ops.ones_like(step)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        if not self.warmup_steps:
            return self.decay(step)
        slope = (self.peak - self.start) / self.warmup_steps
        return ops.where(
            step < self.warmup_steps,
            self.start + slope * step,
            # Clamped below so that the branch not taken makes no infinity at step 0.
            self.decay(ops.maximum(step, float(self.warmup_steps))),
        )

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "start": self.start}


@keras.saving.register_keras_serializable(package="macaron_tf")
class InverseSqrtSchedule(WarmupSchedule):
    """Warm-up, then `peak * sqrt(warmup_steps / step)` (Vaswani et al. 2017, section 5.3).

    Args: as `WarmupSchedule`; with `warmup_steps` 0 the decay counts from step 1.
    """

    def decay(self, step):
        first = float(max(self.warmup_steps, 1))
        return self.peak * first**0.5 * ops.rsqrt(ops.maximum(step, first))


@keras.saving.register_keras_serializable(package="macaron_tf")
class LinearSchedule(WarmupSchedule):
    """Warm-up, then a straight line down to 0 at `total_steps` (Devlin et al. 2019).

    Args:
        total_steps: the update at which the learning rate is 0, and stays so.
    """

    def __init__(self, peak: float, total_steps: int, warmup_steps: int = 0, start: float = 0.0):
        super().__init__(peak, warmup_steps, start)
        self.total_steps = total_steps

    def decay(self, step):
        span = float(max(self.total_steps - self.warmup_steps, 1))
        return self.peak * ops.maximum(self.total_steps - step, 0.0) / span

    def get_config(self):
        return {**super().get_config(), "total_steps": self.total_steps}


@keras.saving.register_keras_serializable(package="macaron_tf")
class CosineSchedule(LinearSchedule):
    """Warm-up, then half a period of a cosine down to 0 at `total_steps` (Radford et al. 2018).

    Args: as `LinearSchedule`.
    """

    def decay(self, step):
        left = super().decay(step) / self.peak  # 1 to 0
        return self.peak * 0.5 * (1.0 - ops.cos(math.pi * left))


def make_schedule(config: TrainingConfig) -> keras.optimizers.schedules.LearningRateSchedule:
    """The schedule that a configuration names."""
    warmup = {"warmup_steps": config.warmup_steps, "start": config.warmup_start}
    if config.schedule == "inverse_sqrt":
        return InverseSqrtSchedule(config.learning_rate, **warmup)
    if config.schedule == "linear":
        return LinearSchedule(config.learning_rate, config.max_steps, **warmup)
    if config.schedule == "cosine":
        return CosineSchedule(config.learning_rate, config.max_steps, **warmup)
    return WarmupSchedule(config.learning_rate, **warmup)
