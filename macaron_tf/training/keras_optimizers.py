"""Keras's optimizers by name and optimizers of the user's own, beside Adam and Adafactor."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from macaron_tf.errors import UserError, nearest
from macaron_tf.plug_ins import clear_errors, find, is_place
from macaron_tf.variables import spec_of

# Arguments of every Keras optimizer, and the settings of training that decide them.
_DECIDED = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "adam_weight_decay": "weight_decay",
    "clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
    "global_clipnorm": "clip_norm",
    "use_ema": "ema_decay",
    "ema_momentum": "ema_decay",
    "ema_overwrite_frequency": "ema_decay",
    "gradient_accumulation_steps": "accumulation_steps",
    "loss_scale_factor": "dtype_policy",
}
# Attributes of an optimizer that would do a part of an update a second time.
_TWICE = ("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "gradient_accumulation_steps")
_TWICE += ("loss_scale_factor",)


@keras.saving.register_keras_serializable(package="macaron_tf")
class Muon(keras.optimizers.Muon):
    """Keras's Muon, for the matrices inside the blocks, each orthogonalized on its own.

    Keras chooses Muon's variables by rank and path, so that a table of distances counts as a
    matrix; and fused queries, keys and values count as one, whose update then mixes the three.
    Here the layers' declarations decide (`spec_of`): Muon's step is for matrices with two named
    axes of which none is a vocabulary, one step for each of the parts that lie side by side. All
    else, tables and heads and a user's undeclared layers, gets Adam's. One `weight_decay` is for
    both.

    References: Jordan et al. 2024, "Muon"; Liu et al. 2025, "Muon is Scalable for LLM Training".
    """

    def build(self, var_list):
        if not self.built:
            super().build(var_list)
            self._parts = [spec_of(v).parts for v in var_list]

    def _should_use_adamw(self, variable):
        axes = spec_of(variable).axes
        hidden = None not in axes and not {"vocab", "cluster"} & {*axes}
        return not hidden or super()._should_use_adamw(variable)

    def _muon_update_step(self, gradient, variable, lr, m):
        self.assign(m, self.momentum * m + gradient)
        moved = gradient + self.momentum * m if self.nesterov else m
        parts = ops.split(moved, self._parts[self._get_variable_index(variable)], axis=-1)
        steps = [self.zeropower_via_newtonschulz5(part, self.ns_steps) for part in parts]
        steps = ops.concatenate(list(map(self.lr_adjust, steps)), axis=-1)
        self.assign_sub(variable, ops.cast(lr, variable.dtype) * steps)

    def _apply_weight_decay(self, variables):
        # Keras's Muon assigns where replicas may only update.
        keras.optimizers.Optimizer._apply_weight_decay(self, variables)


@keras.saving.register_keras_serializable(package="macaron_tf")
class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """Keras's schedule-free AdamW, equal to its paper on every backend.

    A gradient is taken at y, between the steps' own weights z and their average x, which is the
    model to evaluate: `y = (1 - beta_1) z + beta_1 x`. Keras 3.15's recovers x with a z that has
    already moved on TensorFlow, and decays x, of which the average forgets most: here z decays.

    References: Defazio et al. 2024, "The Road Less Scheduled".
    """

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        z, velocity = self._momentums[index], self._velocities[index]
        lr, gradient = (ops.cast(x, variable.dtype) for x in (learning_rate, gradient))
        done = ops.cast(self.iterations + 1, variable.dtype)
        if self.warmup_steps:
            lr *= ops.minimum(done / self.warmup_steps, 1.0)
        y = ops.convert_to_tensor(variable)
        x = (y - (1 - self.beta_1) * z) / self.beta_1
        square = self.beta_2 * velocity + (1 - self.beta_2) * ops.square(gradient)
        self.assign(velocity, square)
        root = ops.sqrt(square / (1 - ops.power(ops.cast(self.beta_2, y.dtype), done)))
        step = gradient / (root + self.epsilon)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            step += self.weight_decay * y
        moved = z - lr * step
        self.assign(z, moved)
        x += (moved - x) / done
        self.assign(variable, (1 - self.beta_1) * moved + self.beta_1 * x)

    def _apply_weight_decay(self, variables):
        """Does nothing: `update_step` decays."""

    def averages(self) -> list:
        """The average x of each variable."""
        pairs = zip(self._trainable_variables, self._momentums, strict=True)
        return [(y - (1 - self.beta_1) * z) / self.beta_1 for y, z in pairs]


KERAS = {
    "lion": keras.optimizers.Lion,
    "muon": Muon,
    "schedule_free_adamw": ScheduleFreeAdamW,
    "sgd": keras.optimizers.SGD,
}


def optimizer_class(name: str) -> type[keras.optimizers.Optimizer]:
    """The class of a name in `KERAS`, or a user's, `package.module:Name`."""
    return find(name, keras.optimizers.Optimizer) if is_place(name) else KERAS[name]


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that an optimizer does not have, or that settings of training decide."""
    known = _arguments_of(optimizer_class(name))
    for argument in arguments:
        if setting := _DECIDED.get(argument):
            raise UserError(f"optimizer {name}: set training.{setting} instead of {argument}")
        if argument not in known:
            raise UserError(
                f"optimizer {name} has no argument {argument!r}; there are "
                f"{', '.join(sorted(known - _DECIDED.keys()))}{nearest(argument, known)}"
            )


def _arguments_of(cls: type) -> set[str]:
    """The names of a constructor's arguments, and of the bases' that its `**kwargs` reach."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            names |= {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
            if all(one.kind is not one.VAR_KEYWORD for one in parameters):
                break
    return names - {"self", "args", "kwargs", "name"}


def make_keras_optimizer(
    name: str, arguments: Mapping[str, Any], schedule, weight_decay: float | None
) -> keras.optimizers.Optimizer:
    """An optimizer of `KERAS`, or a user's, on a schedule.

    Raises:
        UserError: its constructor raises; or it clips, averages, accumulates or scales gradients by
            itself, which an update does once, over all replicas and micro-batches.
    """
    with clear_errors(name):
        optimizer = optimizer_class(name)(learning_rate=schedule, **arguments)
    optimizer.weight_decay = weight_decay
    for argument in _TWICE:
        if getattr(optimizer, argument):
            setting = _DECIDED[argument]
            raise UserError(
                f"optimizer {name} sets {argument} itself: leave that to training.{setting}"
            )
    return optimizer
