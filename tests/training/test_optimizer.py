"""Tests of training settings, schedules and optimizers."""

import dataclasses
import importlib
import math
import pathlib

import keras
import numpy as np
import pytest

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import FusedAdam, WarmupSchedule, make_optimizer
from macaron_tf.variables import declare
from tests import walk
from tests.harness import refuses
from tests.toys.training import updated, variables_of


@pytest.mark.parametrize(
    ("schedule", "end", "said"),
    [
        ("linear", 1e-3, "must be below learning_rate=0.001"),
        ("constant", 1e-4, "has no effect with schedule=constant"),
    ],
)
def test_a_schedules_end_is_below_its_peak(schedule, end, said):
    said = f"schedule_end={end} {said}"
    refuses(said, TrainingConfig, schedule=schedule, learning_rate=1e-3, schedule_end=end)


PEAK = 1.5e-3  # of `TrainingConfig()`, which has fairseq's inverse square root and 8,000 steps up
SCHEDULE = {"learning_rate": 1e-3, "warmup_steps": 100, "max_steps": 1000}
NO_WARMUP = {"learning_rate": 1e-3, "warmup_steps": 0}
# The learning rate of T5's update n is 1/sqrt(max(n, 10^4)).
T5 = {
    "schedule": "inverse_sqrt",
    "learning_rate": 0.01,
    "warmup_start": 0.01,
    "warmup_steps": 10_000,
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {0: 1e-7, 1: 1e-7 + (PEAK - 1e-7) / 8000, 4000: (PEAK + 1e-7) / 2, 8000: PEAK}),
        ({}, {step: PEAK * (8000 / step) ** 0.5 for step in (8001, 32_000, 800_000)}),
        (NO_WARMUP, {0: 1e-3, 4: 5e-4}),
        (T5, {n: max(n, 1e4) ** -0.5 for n in (0, 1, 9999, 10_000, 10_001, 40_000, 524_288)}),
        ({**SCHEDULE, "schedule": "linear"}, {0: 1e-7, 100: 1e-3, 550: 5e-4, 1000: 0.0, 1100: 0.0}),
        (
            {**SCHEDULE, "schedule": "cosine"},
            {100: 1e-3, 400: 1e-3 * 0.5 * (1 + math.cos(math.pi / 3)), 550: 5e-4, 1100: 0.0},
        ),
        ({**SCHEDULE, "schedule": "constant"}, {50: 5.0005e-4, 900: 1e-3}),
        *(
            (
                {**SCHEDULE, "schedule": name, "schedule_end": 2e-4},
                {100: 1e-3, 550: 6e-4, 1000: 2e-4, 2000: 2e-4},
            )
            for name in ("linear", "cosine")
        ),
    ],
)
def test_schedules(settings, expected):
    optimizer, found = make_optimizer(TrainingConfig(**settings)), {}
    for step in expected:
        optimizer.iterations.assign(step)
        found[step] = float(optimizer.learning_rate)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("decay", ["constant", "inverse_sqrt", "linear", "cosine"])
def test_serializes(decay):
    schedule = WarmupSchedule(decay, 1e-3, 100, 10, 1e-7)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert copy.decay == decay
    assert float(copy(7)) == float(schedule(7))
    assert float(copy(50)) == float(schedule(50))


CONFIG = TrainingConfig(
    schedule="constant", learning_rate=1e-2, warmup_steps=3, weight_decay=0.1, epsilon=1e-3
)


def assert_updates(config, starts, theirs):
    """Checks that six random updates of variables give `theirs(start, gradients)`."""
    rng = np.random.default_rng(1)
    gradients = [rng.normal(size=(6, *start.shape)) for start in starts]
    variables = variables_of(starts)
    found = updated(make_optimizer(config, variables), variables, gradients)
    for start, several, ours in zip(starts, gradients, found, strict=True):
        expected = theirs(start, several)
        assert np.abs(expected - start).max() > 0
        np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.0},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decay_vectors": False},
        {"weight_decay": 0.0, "optimizer": "adafactor", **T5},
    ],
)
def test_updates_are_those_of_kerass_optimizers(settings):
    """Keras's Adafactor, too, has a constant rate as long as it is below 1/sqrt(t)."""
    config = dataclasses.replace(CONFIG, **settings)
    moments = config.beta_1, config.beta_2, config.epsilon

    def theirs(start, gradients):
        optimizer = keras.optimizers.Adafactor(0.01, relative_step=False)
        if config.optimizer == "adam":
            decay = config.weight_decay if config.decay_vectors or start.ndim > 1 else None
            schedule = WarmupSchedule("constant", 1e-2, 1, 3, config.warmup_start)
            optimizer = keras.optimizers.Adam(schedule, *moments, weight_decay=decay)
        return updated(optimizer, variables_of([start]), [gradients])[0]

    rng = np.random.default_rng(0)
    starts = [rng.normal(size=(4, 3)), rng.normal(size=5), 1e-5 * rng.normal(size=(2, 2))]
    assert_updates(config, starts, theirs)


def test_amsgrad_is_kerass():
    gradients = np.array([[[1.0, 2.0, -3.0], [0.1, 0.0, 0.2], [0.0, 0.1, 0.1]]])
    ours, theirs = (
        updated(cls(0.1, amsgrad=True), variables_of([[1.0, -2.0, 3.0]]), gradients)
        for cls in (FusedAdam, keras.optimizers.Adam)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_adafactor_equals_transformers_at_a_constant_rate():
    """Adafactor agrees with transformers at a constant rate, over six updates."""
    torch = pytest.importorskip("torch")
    published = pytest.importorskip("transformers.optimization")
    constant = {"learning_rate": 0.5, "schedule": "constant", "warmup_steps": 0}
    config = TrainingConfig(optimizer="adafactor", **constant)

    def theirs(start, gradients):
        weight = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
        options = {"scale_parameter": True, "relative_step": False, "warmup_init": False}
        optimizer = published.Adafactor([weight], lr=0.5, **options)
        for gradient in gradients:
            weight.grad = torch.tensor(gradient, dtype=torch.float32)
            optimizer.step()
        return weight.detach().numpy()

    rng = np.random.default_rng(0)
    starts = [rng.normal(size=shape) for shape in ((4, 3), (2, 3, 5), (5,))]
    assert_updates(config, starts, theirs)


@pytest.mark.parametrize(("name", "parts"), [("qkv", 3), ("key_value", 2), ("key_value", None)])
def test_adafactor_takes_matrices_side_by_side_one_by_one(name, parts):
    """A joint matrix is updated like `parts` separate variables if its layer declares `parts`."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 6)).astype("float32")
    start[:, : 6 // (parts or 2)] *= 0.1
    gradients = rng.normal(size=(3, 4, 6)).astype("float32")
    with keras.name_scope(name):
        joined = keras.Variable(start, name="kernel")
    if parts:
        declare(joined, parts=parts)
    split = variables_of(np.split(start, parts or 1, axis=1))
    options = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 0}
    config = TrainingConfig(optimizer="adafactor", **options)
    [found] = updated(make_optimizer(config), [joined], [gradients])
    several = updated(make_optimizer(config), split, np.split(gradients, parts or 1, axis=2))
    expected = np.concatenate(several, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not np.allclose(expected, start, atol=1e-3)


def test_a_block_of_ones_own_has_the_adafactor_of_t5(tmp_path, monkeypatch):
    """In a user's block, concatenated matrices are updated separately, and biases do not decay."""
    walk.write_modules(tmp_path, pathlib.Path("docs/own_block.md").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    inputs = keras.Input((None, 6))
    block = importlib.import_module("my_gates").GatesBlock(num_heads=2, feed_forward_dim=16)
    keras.Model(inputs, block(inputs)).save(tmp_path / "model.keras")
    weights = keras.models.load_model(tmp_path / "model.keras").trainable_variables
    optimizer = make_optimizer(TrainingConfig(optimizer="adafactor"))
    optimizer.build(weights)
    parts = {
        w.path.split("gates/")[-1]: len(m) for w, m in zip(weights, optimizer._moments, strict=True)
    }
    assert (parts["both/kernel"], parts["biases"], parts["last/kernel"]) == (2, 1, 1)
    optimizer = make_optimizer(TrainingConfig(weight_decay=0.1, decay_vectors=False), weights)
    optimizer.build(weights)
    decayed = {weight.name for weight in weights if optimizer._use_weight_decay(weight)}
    assert decayed == {"kernel"}


def test_adafactor_keeps_rows_and_columns_alone():
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in ((40, 30), (7,))]
    optimizer = make_optimizer(TrainingConfig(optimizer="adafactor"), variables)
    optimizer.build(variables)
    shapes = [tuple(v.shape) for v in optimizer.variables if len(v.shape)]
    assert shapes == [(40,), (30,), (7,)]


def test_a_rate_that_float32_rounds_to_0_is_refused():
    for rate in (0.0, 1e-45, -1e-3):
        refuses(f"={rate} must be a number of at least 1.2e-3", TrainingConfig, learning_rate=rate)
