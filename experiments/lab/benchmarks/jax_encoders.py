"""Our encoders' training step on Keras's JAX backend, as `--engine jax` makes it."""

import keras
import numpy as np

from experiments.lab.benchmarks.encoder_step import StepSetting
from experiments.lab.benchmarks.tensorflow_encoders import (
    bert_config,
    block_configs,
    masked_batch,
    training_config,
)
from experiments.lab.benchmarks.workers import Contender
from macaron_tf.distribution.mesh import spread
from macaron_tf.models import EncoderConfig, PretrainingEncoder
from macaron_tf.objectives import MaskedLanguageObjective
from macaron_tf.training.jax_model import build_jax_model


def training_step(setting: StepSetting, config: EncoderConfig) -> Contender:
    """AdamW updates of a `JaxModel` on the setting's batch, which lies on the device."""
    keras.utils.set_random_seed(setting.seed)
    training = training_config(setting)
    network = PretrainingEncoder(config, dtype=training.dtype_policy)
    network.build()
    model = build_jax_model(network, MaskedLanguageObjective(skip_padding=False), training)
    model.prepare()
    batch = spread(masked_batch(setting))
    batch = {name: keras.ops.convert_to_tensor(array) for name, array in batch.items()}

    def run(steps: int) -> float:
        for _ in range(steps):
            values = model.update(iter([batch]))
        sums = dict(zip(model.names["train"], np.asarray(values), strict=False))
        return float(sums["loss_sum"] / sums["weight"])

    return Contender(run, network.count_params())


def contenders(**options) -> dict[str, Contender]:
    """Our BERT's, of a `StepSetting(**options)`."""
    setting = StepSetting(**options)
    return {"ours, JAX": training_step(setting, bert_config(setting))}


def block_contenders(**options) -> dict[str, Contender]:
    """All blocks', of a `StepSetting(**options)`."""
    setting = StepSetting(**options)
    return {name: training_step(setting, one) for name, one in block_configs(setting).items()}
