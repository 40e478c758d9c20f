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
    """Linear from `start` to `peak` over `warmup_steps` updates, then a decay.

    The first update sees step 0, hence `start`: the update after n others is made with
    `start + n * (peak - start) / warmup_steps`, as in fairseq.

    Args:
        decay: `"constant"`; `"inverse_sqrt"`, `peak * sqrt(warmup_steps / step)` (Vaswani et al.
            2017, section 5.3), from step 1 without a warm-up; `"linear"`, a straight line down to
            `end` at `total_steps` (Devlin et al. 2019); `"cosine"`, half a period of a cosine down
            to `end` at `total_steps` (Radford et al. 2018).
        total_steps: the update from which a linear or cosine decay is at its end.
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
            # Clamped below so that the branch not taken gives no infinity at step 0.
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
    """The schedule of a configuration."""
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
    """Keras's Adam in one pass over a variable and its two moments instead of fifteen.

    In the scope of a strategy, where a variable has several copies, and on JAX, where XLA makes it
    one pass, Keras's own update runs. Arguments are those of `keras.optimizers.Adam`, without
    `amsgrad`; with `weight_decay` it is AdamW.
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
    """Keras's, at the learning rate that is given, with the second moments of matrices factored.

    Keras 3.15's takes the smaller of the learning rate and 1/sqrt(t), with `relative_step=False`
    too, and keeps the product of a matrix's factors besides, as large as the matrix. Queries, keys
    and values, a gate and what it multiplies are matrices of their own, as in T5: its queries
    start narrower, and a step is relative to a matrix's size.
    """

    def build(self, var_list):
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, var_list)
        # Of each part of each variable: means of squared gradients over the columns and over the
        # rows of the last two dimensions.
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
        """The update of one matrix or vector at a learning rate of 1."""
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
    """Shadow copies `s += (1 - d) * (w - s)` of variables, started at their first values.

    `d = min(decay, (1 + t) / (10 + t))` after update t, so that the random first weights are soon
    forgotten: a decay of 0.999 is reached after 9,000 updates.
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
        """Moves the shadows towards the weights, in a graph, after so many optimizer steps."""
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
        """The average of each variable."""
        return self.shadows

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """While the context lasts, the model's weights are the averages."""
        # JAX's values never change; TensorFlow's are overwritten.
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
    """The average that a `ScheduleFreeAdamW` keeps; no variables besides the optimizer's."""

    def __init__(self, variables: Sequence[keras.Variable], optimizer: ScheduleFreeAdamW):
        self.variables, self.optimizer, self.shadows = list(variables), optimizer, []

    def update(self, updates) -> None:
        """Does nothing: a step of the optimizer moves the average."""

    def averages(self) -> Sequence:
        return self.optimizer.averages()


def make_optimizer(
    config: TrainingConfig, variables: Sequence[keras.Variable] = ()
) -> keras.optimizers.Optimizer:
    """The configuration's optimizer on its schedule; Adam with a weight decay is AdamW.

    One update of Adam, with `t` the updates done before it plus one and `lr` the schedule's value:

        p -= lr * weight_decay * p                                   (decoupled, before Adam's)
        m += (1 - beta_1) * (g - m);   v += (1 - beta_2) * (g^2 - v)
        p -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    This is fairseq's form. PyTorch's own Adam adds epsilon to the bias-corrected root,
    `sqrt(v / (1 - beta_2^t)) + epsilon`: its epsilon is `1 / sqrt(1 - beta_2^t)` times smaller
    (7 times at the first update with beta_2 = 0.98, no difference after a few hundred).

    `Adafactor` is without momentum and with T5's settings: with `a = max(1e-3, rms(p))`,
    `p -= lr * a * u / max(1, rms(u))`, `u = g / sqrt(v)`, where v is factored into the means of its
    rows and columns, with decay `1 - t^-0.8`.

    Args:
        config: of its fields, clipping and accumulation belong to the `FitModel`.
        variables: the model's trainable variables, needed where `decay_vectors` is false: vectors
            (normalization scales and offsets) and biases of any rank are excluded, see `spec_of`.

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
