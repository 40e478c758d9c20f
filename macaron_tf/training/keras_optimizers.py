"""Optimizers other than Adam and Adafactor: Keras optimizers by name, and user classes."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from macaron_tf.errors import UserError
from macaron_tf.settings import SettingError
from macaron_tf.variables import spec_of

# Attributes of Keras optimizers that must not be set, with the training settings that replace them.
# The training model clips, averages and accumulates by itself, and does not scale the loss.
_CONFLICTS = {
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), "clip_norm"),
    "use_ema": "ema_decay",
    "gradient_accumulation_steps": "accumulation_steps",
    "loss_scale_factor": "dtype_policy",
}
# The same for all arguments of constructors.
_REPLACING_SETTINGS = {
    **_CONFLICTS,
    "learning_rate": "learning_rate",
    **dict.fromkeys(("weight_decay", "adam_weight_decay"), "weight_decay"),
    **dict.fromkeys(("ema_momentum", "ema_overwrite_frequency"), "ema_decay"),
}


@keras.saving.register_keras_serializable(package="macaron_tf")
class Muon(keras.optimizers.Muon):
    """Muon optimizer that orthogonalizes each part of a concatenated matrix separately.

    Keras's Muon selects its variables by rank and path. It would also orthogonalize a table of
    relative positions, and it would treat fused queries, keys and values (QKV) as a single matrix.
    This class selects variables by the axis names from `spec_of`. Muon updates matrices with two
    named axes, except embedding tables and other matrices with a vocabulary axis. A variable whose
    path contains "embedding" counts as an embedding table. Adam updates all other variables,
    including weights of user-defined layers that declare no axes. Weight decay is
    the same for variables that Muon updates and variables that Adam updates.

    References: Jordan et al. 2024, "Muon"; Liu et al. 2025, "Muon is Scalable for LLM Training".
    """

    def build(self, var_list):
        if not self.built:
            super().build(var_list)
            self._parts = [spec_of(v).parts for v in var_list]

    def _should_use_adamw(self, variable):
        axes = spec_of(variable).axes
        is_hidden_matrix = None not in axes and not {"vocab", "cluster"} & {*axes}
        return not is_hidden_matrix or super()._should_use_adamw(variable)

    def _muon_update_step(self, gradient, variable, lr, m):
        self.assign(m, self.momentum * m + gradient)
        momentum_step = gradient + self.momentum * m if self.nesterov else m
        parts = ops.split(momentum_step, self._parts[self._get_variable_index(variable)], axis=-1)
        steps = [self.zeropower_via_newtonschulz5(part, self.ns_steps) for part in parts]
        steps = ops.concatenate(list(map(self.lr_adjust, steps)), axis=-1)
        self.assign_sub(variable, ops.cast(lr, variable.dtype) * steps)

    def _apply_weight_decay(self, variables):
        # Keras's Muon calls `assign`, which TensorFlow does not allow inside a replica.
        keras.optimizers.Optimizer._apply_weight_decay(self, variables)


KERAS = {
    "lion": keras.optimizers.Lion,
    "muon": Muon,
    "sgd": keras.optimizers.SGD,
}


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises a UserError for an argument that a training setting determines."""
    for argument in arguments:
        if setting := _REPLACING_SETTINGS.get(argument):
            raise UserError(f"optimizer {name} must not set {argument}: set training.{setting}")


def check_optimizer(name: str, optimizer: keras.optimizers.Optimizer) -> None:
    """Raises a SettingError if an optimizer does what `FitModel` and `JaxModel` do.

    They clip, average and accumulate over all micro-batches, and do not scale the loss.
    """
    for argument, setting in _CONFLICTS.items():
        if getattr(optimizer, argument):
            raise SettingError(f"optimizer {name} sets {argument} itself: set training.{setting}")
