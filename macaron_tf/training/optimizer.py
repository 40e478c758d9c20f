"""Learning rates as functions of the number of updates done so far."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
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


class _FusedUpdate:
    """`update_step` of Keras's Adam in one pass over a variable and its two moments, not fifteen.

    Within a strategy's scope, where a variable is many, it is Keras's own.
    """

    def update_step(self, gradient, variable, learning_rate):
        if tf.distribute.has_strategy():
            return super().update_step(gradient, variable, learning_rate)
        index = self._get_variable_index(variable)
        step = ops.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=ops.power(ops.cast(self.beta_1, variable.dtype), step),
            beta2_power=ops.power(ops.cast(self.beta_2, variable.dtype), step),
            lr=ops.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=ops.cast(gradient, variable.dtype),
        )


@keras.saving.register_keras_serializable(package="macaron_tf", name="Adam")
class FusedAdam(_FusedUpdate, keras.optimizers.Adam):
    """`keras.optimizers.Adam` with its arguments, without `amsgrad`."""


@keras.saving.register_keras_serializable(package="macaron_tf", name="AdamW")
class FusedAdamW(_FusedUpdate, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with its arguments, without `amsgrad`."""


class ExponentialMovingAverage:
    """Shadow copies `s += (1 - d) * (w - s)` of variables, started at their first values.

    `d = min(decay, (1 + t) / (10 + t))` after update t, so that the random first weights are soon
    forgotten: at decay 0.999 the bound itself is reached after 9,000 updates.

    Args:
        variables: the float variables to follow, already built.
        decay: from 0 to below 1.
    """

    def __init__(self, variables: Sequence[keras.Variable], decay: float):
        self.decay = decay
        self.variables = list(variables)
        self.shadows = [
            keras.Variable(
                variable.numpy(), trainable=False, dtype=variable.dtype, name=f"average_{index}"
            )
            for index, variable in enumerate(self.variables)
        ]

    def update(self, updates) -> None:
        """Moves the shadows towards the weights; runs inside a graph.

        Args:
            updates: scalar, the optimizer steps taken so far, this one included.
        """
        updates = tf.cast(updates, tf.float32)
        decay = tf.minimum(self.decay, (1.0 + updates) / (10.0 + updates))
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            difference = tf.convert_to_tensor(variable) - tf.convert_to_tensor(shadow)
            shadow.value.assign_add(tf.cast(1.0 - decay, difference.dtype) * difference)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """While the context lasts, the model's weights are the averages."""
        weights = [np.array(variable) for variable in self.variables]
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            variable.assign(shadow)
        try:
            yield
        finally:
            for variable, weight in zip(self.variables, weights, strict=True):
                variable.assign(weight)


def make_optimizer(
    config: TrainingConfig, variables: Sequence[keras.Variable] = ()
) -> keras.optimizers.Optimizer:
    """The configuration's optimizer on its schedule; of Adam AdamW where there is a decay.

    One update of Adam, with `t` the updates done before it plus one and `lr` the schedule's value:

        p -= lr * weight_decay * p                                   (decoupled, before Adam's)
        m += (1 - beta_1) * (g - m);   v += (1 - beta_2) * (g^2 - v)
        p -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    This is fairseq's form. PyTorch's own Adam adds epsilon to the bias-corrected root,
    `sqrt(v / (1 - beta_2^t)) + epsilon`: its epsilon weighs `1 / sqrt(1 - beta_2^t)` times less
    (7 times at the first update with beta_2 = 0.98, no difference after a few hundred).

    Adafactor is Keras's, without momentum, its other settings T5's: with `a = max(1e-3, rms(p))`,
    `p -= lr * a * u / max(1, rms(u))`, `u = g / sqrt(v)`, v being factored into its rows' and its
    columns' means, with decay `1 - t^-0.8`. It takes a rate above 1/sqrt(t) for that.

    Args:
        config: the optimizer, the learning rate, schedule, betas, epsilon and weight decay.
            Clipping and accumulation are not the optimizer's but the `FitModel`'s.
        variables: the model's trainable variables; needed only where `decay_vectors` is false, to
            leave out those of rank below 2 (biases, normalization scales and offsets).

    Raises:
        ValueError: `decay_vectors` is false and no variables are given.

    References: Kingma and Ba 2015; Loshchilov and Hutter 2019, "Decoupled Weight Decay
    Regularization"; Shazeer and Stern 2018 (Adafactor), algorithm 4.
    """
    schedule, decay = make_schedule(config), config.weight_decay
    if config.optimizer == "adafactor":
        optimizer = keras.optimizers.Adafactor(
            schedule, relative_step=False, weight_decay=decay or None
        )
    else:
        adam = {"beta_1": config.beta_1, "beta_2": config.beta_2, "epsilon": config.epsilon}
        optimizer = FusedAdamW(schedule, decay, **adam) if decay else FusedAdam(schedule, **adam)
    if decay and not config.decay_vectors:
        if not variables:
            raise ValueError("decay_vectors=False needs the model's trainable variables")
        vectors = [variable for variable in variables if len(variable.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    return optimizer
