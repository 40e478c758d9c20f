"""From a configuration to a model that is ready for `fit`."""

import keras

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.fit_model import FitModel
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.updates import FirstStage, Objective


def build_fit_model(
    network: keras.Model,
    objective: Objective,
    config: TrainingConfig,
    jit_compile: bool = False,
    first_stage: FirstStage | None = None,
) -> FitModel:
    """A compiled `FitModel` with everything as the configuration says.

    Args:
        network: built, under the dtype policy `config.dtype_policy`.
        objective: see `FitModel`.
        config: the optimizer, its schedule, accumulation, clipping and averaging.
        jit_compile: see `FitModel.compile`.
        first_stage: see `FirstStage`; None = every update trains everything.
    """
    model = FitModel(
        network,
        objective,
        accumulation_steps=config.accumulation_steps,
        clip_norm=config.clip_norm,
        ema_decay=config.ema_decay,
        max_skipped_updates=config.max_skipped_updates,
        steps_per_call=config.steps_per_call,
    )
    model.updates.first_stage = first_stage
    optimizer = make_optimizer(config, network.trainable_variables)
    model.compile(optimizer=optimizer, jit_compile=jit_compile)
    return model
