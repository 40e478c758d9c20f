"""Tests of training settings, schedules and optimizers."""

import dataclasses
import importlib
import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import FusedAdam, WarmupSchedule, make_optimizer, make_schedule
from macaron_tf.variables import declare
from tests import walk
from tests.harness import refuses


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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {0: 1e-7, 1: 1e-7 + (PEAK - 1e-7) / 8000, 4000: (PEAK + 1e-7) / 2, 8000: PEAK}),
        ({}, {step: PEAK * (8000 / step) ** 0.5 for step in (8001, 32_000, 800_000)}),
        (NO_WARMUP, {0: 1e-3, 4: 5e-4}),
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
    schedule = make_schedule(TrainingConfig(**settings))
    found = {step: float(schedule(step)) for step in expected}
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


def numpy_adam(p, gradients, config, decayed):
    """Applies AdamW to `p` in NumPy.

    Epsilon is added to the square root of the uncorrected second moment.
    """
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, start=1):
        done = min(t - 1, config.warmup_steps)
        slope = (config.learning_rate - config.warmup_start) / config.warmup_steps
        lr = config.warmup_start + done * slope
        if decayed:
            p = p - lr * config.weight_decay * p
        m = config.beta_1 * m + (1 - config.beta_1) * g
        v = config.beta_2 * v + (1 - config.beta_2) * g**2
        correction = np.sqrt(1 - config.beta_2**t) / (1 - config.beta_1**t)
        p = p - lr * correction * m / (np.sqrt(v) + config.epsilon)
    return p


def assert_updates(config, starts, expected):
    """Checks that six random updates of variables give `expected(start, gradients)`."""
    rng = np.random.default_rng(1)
    gradients = [[rng.normal(size=start.shape) for _ in range(6)] for start in starts]
    variables = [keras.Variable(start, dtype="float32") for start in starts]
    optimizer = make_optimizer(config, variables)
    for several in zip(*gradients, strict=True):
        optimizer.apply([tf.constant(g, tf.float32) for g in several], variables)
    for start, gs, variable in zip(starts, gradients, variables, strict=True):
        wanted = expected(start, gs)
        assert np.abs(wanted - start).max() > 0
        np.testing.assert_allclose(variable, wanted, atol=1e-6)


@pytest.mark.parametrize("weight_decay, decay_vectors", [(0.0, True), (0.1, True), (0.1, False)])
def test_equals_a_numpy_loop(weight_decay, decay_vectors):
    config = dataclasses.replace(CONFIG, weight_decay=weight_decay, decay_vectors=decay_vectors)
    rng = np.random.default_rng(0)

    def expected(start, gradients):
        decayed = weight_decay > 0 and (decay_vectors or start.ndim > 1)
        return numpy_adam(start, gradients, config, decayed)

    assert_updates(config, [rng.normal(size=(3, 2)), rng.normal(size=2)], expected)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_the_fused_adam_is_kerass(amsgrad):
    learned = []
    for cls in (FusedAdam, keras.optimizers.Adam):
        variable = keras.Variable([1.0, -2.0, 3.0])
        optimizer = cls(0.1, amsgrad=amsgrad)
        for gradient in ([1.0, 2.0, -3.0], [0.1, 0.0, 0.2], [0.0, 0.1, 0.1]):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        learned.append(keras.ops.convert_to_numpy(variable))
    np.testing.assert_allclose(*learned, rtol=1e-5)


def numpy_adafactor(p, gradients, rate):
    """Applies Adafactor to `p` in NumPy (Shazeer and Stern 2018, algorithm 4), with T5's settings.

    Second moments of matrices are factored, and second moments of vectors are not.
    """
    v = rows = columns = 0.0
    for t, g in enumerate(gradients, start=1):
        decay = 1.0 - t**-0.8
        square = g**2 + 1e-30
        if p.ndim == 2:
            rows = decay * rows + (1 - decay) * square.mean(axis=1)
            columns = decay * columns + (1 - decay) * square.mean(axis=0)
            v = np.outer(rows / rows.mean(), columns)
        else:
            v = decay * v + (1 - decay) * square
        update = g / np.sqrt(v)
        update /= max(1.0, np.sqrt((update**2).mean()))
        p = p - rate(t - 1) * max(1e-3, np.sqrt((p**2).mean())) * update
    return p


def test_adafactor_is_the_papers_on_t5s_schedule():
    """The learning rate of update n is 1/sqrt(max(n, 10^4)), as in T5."""
    config = TrainingConfig(
        optimizer="adafactor", learning_rate=0.01, warmup_start=0.01, warmup_steps=10_000
    )
    schedule = make_schedule(config)
    for n in (0, 1, 9_999, 10_000, 10_001, 40_000, 524_288):
        assert float(schedule(n)) == pytest.approx(max(n, 1e4) ** -0.5, rel=1e-5)
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=(4, 3)), rng.normal(size=5), 1e-5 * rng.normal(size=(2, 2))]
    assert_updates(
        config, starts, lambda start, gs: numpy_adafactor(start, gs, lambda n: max(n, 1e4) ** -0.5)
    )


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
    split = [keras.Variable(part) for part in np.split(start, parts or 1, axis=1)]
    options = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 0}
    config = TrainingConfig(optimizer="adafactor", **options)
    one, several = make_optimizer(config), make_optimizer(config)
    for gradient in gradients:
        one.apply([gradient], [joined])
        several.apply(np.split(gradient, parts or 1, axis=1), split)
    expected = np.concatenate([np.array(part) for part in split], axis=1)
    np.testing.assert_allclose(np.array(joined), expected, rtol=1e-6)
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
