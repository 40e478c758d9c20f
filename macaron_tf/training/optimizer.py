"""Learning rate schedules, optimizers and the moving average of the weights."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.plug_ins import parse_call
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import ScheduleFreeAdamW, make_keras_optimizer
from macaron_tf.variables import spec_of


@keras.saving.register_keras_serializable(package="macaron_tf")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule: linear warm-up from `start` to `peak`, then a decay.

    The first update has the learning rate `start`. After n updates of the warm-up it is
    `start + n * (peak - start) / warmup_steps`, as in fairseq.

    Args:
        decay: `"constant"`; `"inverse_sqrt"`, `peak * sqrt(warmup_steps / step)` (Vaswani et al.
            2017, section 5.3; without a warm-up `peak / sqrt(step)`); `"linear"` down to `end` at
            `total_steps` (Devlin et al. 2019); or `"cosine"`, half a period down to `end` at
            `total_steps` (Radford et al. 2018).
        peak: learning rate after the warm-up.
        total_steps: number of the update at which a linear or cosine decay ends.
        warmup_steps: updates of the warm-up; 0: no warm-up.
        start: learning rate of the first update of the warm-up.
        end: learning rate at the end of a linear or cosine decay.
    """

    def __init__(
        self,
        decay: str,
        peak: float,
        total_steps: int = 1,
        warmup_steps: int = 0,
        start: float = 0.0,
        end: float = 0.0,
    ):
        super().__init__()
        self.decay, self.peak, self.total_steps = decay, peak, total_steps
        self.warmup_steps, self.start, self.end = warmup_steps, start, end

    def __call__(self, step):
        step = ops.cast(step, "float32")
        if not self.warmup_steps:
            return self._decayed(step)
        slope = (self.peak - self.start) / self.warmup_steps
        return ops.where(
            step < self.warmup_steps,
            self.start + slope * step,
            # Clamped, so that the branch not taken does not become infinite at step 0.
            self._decayed(ops.maximum(step, float(self.warmup_steps))),
        )

    def _decayed(self, step):
        """The learning rate at float `step >= warmup_steps`."""
        if self.decay == "constant":
            return self.peak * ops.ones_like(step)
        if self.decay == "inverse_sqrt":
            first = float(max(self.warmup_steps, 1))
            return self.peak * first**0.5 * ops.rsqrt(ops.maximum(step, first))
        span = float(max(self.total_steps - self.warmup_steps, 1))
        height = self.peak - self.end
        line = height * ops.maximum(self.total_steps - step, 0.0) / span
        if self.decay == "cosine":
            left = line / height  # 1 to 0
            line = height * 0.5 * (1.0 - ops.cos(math.pi * left))
        return self.end + line

    def get_config(self):
        return dict(vars(self))


def make_schedule(config: TrainingConfig) -> WarmupSchedule:
    """Makes the learning rate schedule of a configuration."""
    return WarmupSchedule(
        config.schedule,
        config.learning_rate,
        config.max_steps,
        config.warmup_steps,
        config.warmup_start,
        config.schedule_end,
    )


@keras.saving.register_keras_serializable(package="macaron_tf", name="Adam")
class FusedAdam(keras.optimizers.Adam):
    """Adam in one fused operation: one pass over a variable and its moments instead of fifteen.

    Keras's own update runs in the scope of a strategy, where a variable has several copies, and on
    JAX, where XLA fuses it. Arguments are those of `keras.optimizers.Adam` except `amsgrad`. With
    `weight_decay` it is AdamW.
    """

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() != "tensorflow" or tf.distribute.has_strategy():
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


@keras.saving.register_keras_serializable(package="macaron_tf")
class Adafactor(keras.optimizers.Adafactor):
    """Keras's Adafactor with three corrections.

    - It uses the given learning rate. Keras 3.15's uses at most 1/sqrt(t), even with
      `relative_step=False`.
    - It keeps only the factors of a matrix's second moments. Keras's also keeps their product,
      which is as large as the matrix.
    - It treats concatenated matrices (queries, keys and values; a gate and its input) as separate
      ones, as in T5, because a step's size is relative to the matrix's size.
    """

    def build(self, var_list):
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, var_list)
        # For each part of each variable: means of the squared gradients over the last dimension,
        # and over the one before it.
        self._moments = []
        for v in var_list:
            parts, shape = spec_of(v).parts, list(v.shape)
            if parts > 1:
                shape[-1] //= parts
            kept = [shape] if len(shape) < 2 else [shape[:-1], [*shape[:-2], shape[-1]]]
            self._moments.append(
                [
                    [self.add_variable(s, dtype=v.dtype, name=v.name) for s in kept]
                    for _ in range(parts)
                ]
            )

    def update_step(self, gradient, variable, learning_rate):
        moments = self._moments[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        weight = ops.convert_to_tensor(variable)
        if len(moments) == 1:
            update = self._update(gradient, weight, *moments)
        else:
            gradients, weights = (ops.split(x, len(moments), axis=-1) for x in (gradient, weight))
            update = ops.concatenate(list(map(self._update, gradients, weights, moments)), axis=-1)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * update)

    def _update(self, gradient, weight, moments):
        """Computes the update of one matrix or vector for a learning rate of 1."""
        step = ops.cast(self.iterations + 1, weight.dtype)
        decay = 1.0 - ops.power(step, self.beta_2_decay)
        square = ops.square(gradient) + self.epsilon_1

        def averaged(moment, value):
            value = decay * moment + (1.0 - decay) * value
            self.assign(moment, value)
            return value

        if len(moments) == 1:
            update = gradient * ops.rsqrt(averaged(*moments, square))
        else:
            rows = averaged(moments[0], ops.mean(square, axis=-1))  # (..., R)
            columns = averaged(moments[1], ops.mean(square, axis=-2))  # (..., C)
            rows = rows / ops.mean(rows, axis=-1, keepdims=True)
            update = gradient * ops.rsqrt(rows)[..., None] * ops.rsqrt(columns)[..., None, :]
        update /= ops.maximum(self._rms(update) / self.clip_threshold, 1.0)
        return ops.maximum(self._rms(weight), self.epsilon_2) * update


class ExponentialMovingAverage:
    """Moving averages `s += (1 - d) * (w - s)` of weights w, initialized to the weights.

    After update t the decay is `d = min(decay, (1 + t) / (10 + t))`, so that the initial weights
    are soon forgotten. A decay of 0.999 is reached after 9,000 updates.
    """

    def __init__(self, variables: Sequence[keras.Variable], decay: float):
        self.decay = decay
        self.variables = list(variables)
        mesh = keras.distribution.distribution()
        self.shadows = [
            keras.Variable(
                ops.copy(v),
                trainable=False,
                dtype=v.dtype,
                layout=mesh and mesh.get_variable_layout(v),
                name=f"average_{i}",
            )
            for i, v in enumerate(self.variables)
        ]

    def update(self, updates) -> None:
        """Moves the averages towards the weights; runs in a graph.

        Args:
            updates: t, the number of optimizer steps so far.
        """
        updates = ops.cast(updates, "float32")
        decay = ops.minimum(self.decay, (1.0 + updates) / (10.0 + updates))
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            difference = ops.convert_to_tensor(variable) - ops.convert_to_tensor(shadow)
            change = ops.cast(1.0 - decay, difference.dtype) * difference
            if keras.backend.backend() == "tensorflow":
                shadow.value.assign_add(change)  # in place
            else:
                shadow.assign_add(change)

    def averages(self) -> Sequence:
        """Returns the average of each variable."""
        return self.shadows

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Context in which the model's weights are replaced by the averages."""
        # JAX's arrays are immutable; TensorFlow's are overwritten, so they are copied.
        on_jax = keras.backend.backend() == "jax"
        weights = [v.value if on_jax else np.array(v) for v in self.variables]
        for variable, average in zip(self.variables, self.averages(), strict=True):
            variable.assign(average)
        try:
            yield
        finally:
            for variable, weight in zip(self.variables, weights, strict=True):
                variable.assign(weight)


class ScheduleFreeAverage(ExponentialMovingAverage):
    """The averages that `ScheduleFreeAdamW` computes; needs no variables of its own."""

    def __init__(self, variables: Sequence[keras.Variable], optimizer: ScheduleFreeAdamW):
        self.variables, self.optimizer, self.shadows = list(variables), optimizer, []

    def update(self, updates) -> None:
        """Does nothing, because each optimizer step updates the averages."""

    def averages(self) -> Sequence:
        return self.optimizer.averages()


def make_optimizer(
    config: TrainingConfig, variables: Sequence[keras.Variable] = ()
) -> keras.optimizers.Optimizer:
    """Makes the optimizer of a configuration, with its learning rate schedule.

    Update t of Adam, counted from 1, with the learning rate `lr`; with a weight decay it is AdamW:

        p -= lr * weight_decay * p                                   (decoupled, before Adam's step)
        m += (1 - beta_1) * (g - m);   v += (1 - beta_2) * (g^2 - v)
        p -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    This is fairseq's form. PyTorch's own Adam adds epsilon after the bias correction,
    `sqrt(v / (1 - beta_2^t)) + epsilon`, which makes its epsilon `1 / sqrt(1 - beta_2^t)` times
    smaller: 7 times at the first update with beta_2 = 0.98, and equal after a few hundred.

    `Adafactor` has no momentum and T5's settings: `p -= lr * a * u / max(1, rms(u))` with
    `a = max(1e-3, rms(p))` and `u = g / sqrt(v)`, where v is factored into the means of its rows
    and columns and has decay `1 - t^-0.8`.

    Args:
        config: the `FitModel` handles its clipping and accumulation.
        variables: the model's trainable variables, needed if `decay_vectors` is false: vectors
            (normalization scales and offsets) and biases of any rank then do not decay, see
            `spec_of`.

    References: Kingma and Ba 2015; Loshchilov and Hutter 2019, "Decoupled Weight Decay
    Regularization"; Shazeer and Stern 2018 (Adafactor), algorithm 4.
    """
    schedule, decay = make_schedule(config), config.weight_decay or None
    name, arguments = parse_call(config.optimizer)
    if name == "adafactor":
        optimizer = Adafactor(schedule, relative_step=False, weight_decay=decay)
    elif name == "adam":
        moments = config.beta_1, config.beta_2, config.epsilon
        optimizer = FusedAdam(schedule, *moments, weight_decay=decay)
    else:
        optimizer = make_keras_optimizer(name, arguments, schedule, decay)
    if decay and not config.decay_vectors:
        if not variables:
            raise ValueError("decay_vectors=False needs the model's trainable variables")
        optimizer.exclude_from_weight_decay([v for v in variables if not spec_of(v).decays])
    return optimizer
