"""Learning rate schedules, optimizers and moving averages of weights."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.io.plug_ins import clear_errors, find, is_import_path, parse_call
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import KERAS, check_optimizer
from macaron_tf.variables import spec_of


@keras.saving.register_keras_serializable(package="macaron_tf")
@dataclasses.dataclass(eq=False)
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule with a linear warm-up from `start` to `peak`, followed by a decay.

    After n warm-up updates, the learning rate is `start + n * (peak - start) / warmup_steps`, as in
    fairseq. The decay has one of four forms:

    - `"constant"`: `peak`.
    - `"inverse_sqrt"`: `peak * sqrt(warmup_steps / step)`, or `peak / sqrt(step)` without a warm-up
      (Vaswani et al. 2017, section 5.3).
    - `"linear"`: a line from `peak` to `end` at `total_steps` (Devlin et al. 2019).
    - `"cosine"`: half a cosine period from `peak` to `end` at `total_steps` (Radford et al. 2018).
    """

    decay: str
    peak: float
    total_steps: int = 1
    warmup_steps: int = 0
    start: float = 0.0
    end: float = 0.0

    def __call__(self, step):
        step = ops.cast(step, "float32")
        # `where` evaluates both branches, so clamp the step to the decay's range.
        late = ops.maximum(step, float(self.warmup_steps)) if self.warmup_steps else step
        if self.decay == "constant":
            rate = self.peak * ops.ones_like(late)
        elif self.decay == "inverse_sqrt":
            first = float(max(self.warmup_steps, 1))
            rate = self.peak * first**0.5 * ops.rsqrt(ops.maximum(late, first))
        else:
            decay_steps = float(max(self.total_steps - self.warmup_steps, 1))
            height = self.peak - self.end
            line = height * ops.maximum(self.total_steps - late, 0.0) / decay_steps
            if self.decay == "cosine":
                fraction = line / height  # falls from 1 to 0
                line = height * 0.5 * (1.0 - ops.cos(math.pi * fraction))
            rate = self.end + line
        if not self.warmup_steps:
            return rate
        slope = (self.peak - self.start) / self.warmup_steps
        return ops.where(step < self.warmup_steps, self.start + slope * step, rate)

    def get_config(self):
        return dict(vars(self))


@keras.saving.register_keras_serializable(package="macaron_tf", name="Adam")
class FusedAdam(keras.optimizers.Adam):
    """Adam, or AdamW if `weight_decay` is set, with a fused TensorFlow operation for the update.

    The fused operation reads a variable and its moments once. Keras's update reads the same tensors
    fifteen times. Keras's update still runs on JAX, where XLA fuses the operations, and in the
    scope of a distribution strategy, where a variable has several copies.

    The arguments are the same as for `keras.optimizers.Adam`. With `amsgrad`, Keras's update runs.
    """

    def update_step(self, gradient, variable, learning_rate):
        is_fused = keras.backend.backend() == "tensorflow" and not self.amsgrad
        if not is_fused or tf.distribute.has_strategy():
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

    - This class uses `learning_rate` unchanged. Keras 3.15 limits the learning rate to 1/sqrt(t),
      even with `relative_step=False`.
    - This class stores only the factors of a matrix's second moments. Keras also stores the product
      of the factors, which takes as much memory as the matrix.
    - If a weight concatenates several matrices, such as the projections to queries, keys and
      values, this class updates each matrix separately, because the update of a matrix is scaled by
      the matrix's root mean square. In T5, these matrices are separate weights.
    """

    def build(self, var_list):
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, var_list)
        # Factored second moments of each part of each variable: means of the squared gradients over
        # the last dimension, and over the second to last.
        self._moments = []
        for v in var_list:
            parts, shape = spec_of(v).parts, list(v.shape)
            if parts > 1:
                shape[-1] //= parts
            factor_shapes = [shape] if len(shape) < 2 else [shape[:-1], [*shape[:-2], shape[-1]]]
            self._moments.append(
                [
                    [self.add_variable(s, dtype=v.dtype, name=v.name) for s in factor_shapes]
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
        """Computes the value to subtract from one matrix or vector at learning rate 1.

        `moments` holds the second moment of the gradient, or its two factors, and is updated.
        """
        step = ops.cast(self.iterations + 1, weight.dtype)
        decay = 1.0 - ops.power(step, self.beta_2_decay)
        square = ops.square(gradient) + self.epsilon_1

        def update_average(moment, value):
            value = decay * moment + (1.0 - decay) * value
            self.assign(moment, value)
            return value

        if len(moments) == 1:
            update = gradient * ops.rsqrt(update_average(*moments, square))
        else:
            rows = update_average(moments[0], ops.mean(square, axis=-1))  # (..., R)
            columns = update_average(moments[1], ops.mean(square, axis=-2))  # (..., C)
            rows = rows / ops.mean(rows, axis=-1, keepdims=True)
            update = gradient * ops.rsqrt(rows)[..., None] * ops.rsqrt(columns)[..., None, :]
        update /= ops.maximum(self._rms(update) / self.clip_threshold, 1.0)
        return ops.maximum(self._rms(weight), self.epsilon_2) * update


class ExponentialMovingAverage:
    """Exponential moving averages `s += (1 - d) * (w - s)` of weights w, initialized to w.

    After update t, the decay rate is `d = min(decay, (1 + t) / (10 + t))`. The decay rate is small
    at first, so that the initial weights soon lose their influence on the averages. With
    `decay=0.999`, d reaches 0.999 after 9,000 updates.
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
        """Moves the averages towards the weights. `updates` is the number t of steps so far."""
        updates = ops.cast(updates, "float32")
        decay = ops.minimum(self.decay, (1.0 + updates) / (10.0 + updates))
        for variable, shadow in zip(self.variables, self.shadows, strict=True):
            difference = ops.convert_to_tensor(variable) - ops.convert_to_tensor(shadow)
            change = ops.cast(1.0 - decay, difference.dtype) * difference
            if keras.backend.backend() == "tensorflow":
                shadow.value.assign_add(change)  # in place
            else:
                shadow.assign_add(change)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Replaces the weights by their averages within the `with` block."""
        # TensorFlow overwrites a variable's value in place, so copy it. JAX arrays are immutable.
        on_jax = keras.backend.backend() == "jax"
        weights = [v.value if on_jax else np.array(v) for v in self.variables]
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
    """Builds the optimizer that `config` describes, with its learning rate schedule.

    With the learning rate `lr` and the gradient g, Adam makes update t, counted from 1, as follows.
    The first line is the weight decay of AdamW.

        p -= lr * weight_decay * p                                   (decoupled, before Adam's step)
        m += (1 - beta_1) * (g - m);   v += (1 - beta_2) * (g^2 - v)
        p -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    Epsilon is added before the bias correction, as in fairseq. PyTorch adds epsilon after the bias
    correction, `sqrt(v / (1 - beta_2^t)) + epsilon`. The same epsilon therefore has more effect in
    this Adam than in PyTorch's Adam. With beta_2 = 0.98, the effect is 7 times as large at the
    first update. After a few hundred updates, the two formulas agree.

    Adafactor uses T5's settings and no momentum. It computes `p -= lr * a * u / max(1, rms(u))`
    with `a = max(1e-3, rms(p))` and `u = g / sqrt(v)`. The second moment v has the decay rate
    `1 - t^-0.8` and is factored into row means and column means.

    Args:
        variables: the model's trainable variables, required if `config.weight_decay` is above 0
            and `config.decay_vectors` is False. The optimizer then excludes biases, normalization
            weights and other vectors from weight decay, see `spec_of`.
    """
    schedule = WarmupSchedule(
        config.schedule,
        config.learning_rate,
        config.max_steps,
        config.warmup_steps,
        config.warmup_start,
        config.schedule_end,
    )
    decay = config.weight_decay or None
    name, arguments = parse_call(config.optimizer)
    if name == "adafactor":
        optimizer = Adafactor(schedule, relative_step=False, weight_decay=decay)
    elif name == "adam":
        moments = config.beta_1, config.beta_2, config.epsilon
        optimizer = FusedAdam(schedule, *moments, weight_decay=decay)
    else:
        with clear_errors(name):
            own = find(name, keras.optimizers.Optimizer) if is_import_path(name) else KERAS[name]
            optimizer = own(learning_rate=schedule, **arguments)
        optimizer.weight_decay = decay
        check_optimizer(name, optimizer)
    if decay and not config.decay_vectors:
        if not variables:
            raise ValueError("decay_vectors=False needs the trainable variables: pass `variables`")
        optimizer.exclude_from_weight_decay([v for v in variables if not spec_of(v).decays])
    return optimizer
