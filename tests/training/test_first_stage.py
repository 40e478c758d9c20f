"""A first stage trains its part alone, exactly, and everything is trained after it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.updates import FirstStage
from tests.training.training_toy import toy_batch, toy_dataset, toy_network, toy_objective

STAGE = 3
CONFIG = TrainingConfig(learning_rate=0.01, warmup_steps=0, weight_decay=0.1, clip_norm=0.5)


def staged(steps=STAGE, **changes):
    keras.utils.set_random_seed(1)
    network = toy_network()
    part = network.get_layer("hidden").trainable_variables
    config = TrainingConfig(**{**CONFIG.__dict__, **changes})
    stage = FirstStage(steps, part) if steps else None
    return build_fit_model(network, toy_objective, config, first_stage=stage)


def weights(model):
    return {weight.path: weight.numpy() for weight in model.network.weights}


@pytest.mark.parametrize("changes", [{}, {"accumulation_steps": 2}, {"steps_per_call": 2}])
@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_all_else_stays_to_the_bit_and_then_moves(optimizer, changes):
    model = staged(optimizer=optimizer, **changes)
    before = weights(model)
    model.fit(toy_dataset(0, STAGE * model.accumulation_steps), verbose=0)
    after = weights(model)
    for path, value in before.items():
        moved = np.abs(after[path] - value).max()
        assert (moved > 0) == ("hidden" in path), path
    model.fit(toy_dataset(9, 9 + model.accumulation_steps), verbose=0)
    last = weights(model)
    assert all(np.abs(last[path] - value).max() > 0 for path, value in after.items())


def test_it_compiles_under_xla():
    """A whole update in one program, as on a TPU."""
    one, compiled = staged(steps=1), staged(steps=1)
    for model in (one, compiled):
        model.prepare()
    update = tf.function(
        lambda batch: compiled.updates.update_of(compiled.updates.micro_step, [batch]),
        jit_compile=True,
        autograph=False,
    )
    batch = {name: tf.constant(value) for name, value in toy_batch(0).items()}
    for _ in range(2):
        update(batch)
        one.updates.update_of(one.updates.micro_step, [batch])
        for a, b in zip(weights(one).values(), weights(compiled).values(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_first_stage_is_training_that_part_alone():
    """As with a network whose other layers Keras is told not to train: norm, clip and update."""
    model, alone = staged(), staged(steps=0)
    for name in ("embedding", "head"):
        alone.network.get_layer(name).trainable = False
    for one in (model, alone):
        one.fit(toy_dataset(0, STAGE), verbose=0)
    one, other = weights(model), weights(alone)
    for path, value in one.items():
        np.testing.assert_allclose(value, other[path.replace("toy_1", "toy")], atol=1e-7)
