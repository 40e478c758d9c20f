"""Tests of training settings, schedules and optimizers, also Keras's and user-defined ones."""

import dataclasses
import importlib
import math
import pathlib
import sys

import keras
import numpy as np
import pytest

from macaron_tf.models import catalog
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import FusedAdam, WarmupSchedule, make_optimizer
from macaron_tf.variables import declare, spec_of
from tests.harness import refuses
from tests.toys import guides
from tests.toys.training import CONFIG, StopAt, assert_same, killed, run, updated, variables_of


def test_a_schedules_end_is_below_its_peak():
    said = "schedule_end=0.001 must be below learning_rate=0.001"
    refuses(said, TrainingConfig, schedule="linear", learning_rate=1e-3, schedule_end=1e-3)


PEAK = 1.5e-3  # of `TrainingConfig()`, which has fairseq's inverse square root and 8,000 steps up
SCHEDULE = {"learning_rate": 1e-3, "warmup_steps": 100, "max_steps": 1000}
PLAIN = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 0}
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


ADAM = TrainingConfig(
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
    config = dataclasses.replace(ADAM, **settings)
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


@pytest.mark.parametrize(
    ("optimizer", "parts"), [("adafactor", 3), ("adafactor", 2), ("adafactor", None), ("muon", 3)]
)
def test_matrices_side_by_side_are_taken_one_by_one(optimizer, parts):
    """A joint matrix is updated like `parts` separate matrices if its layer declares `parts`.

    Muon updates these, and a bias, as Keras's Muon does.
    """
    rng = np.random.default_rng(0)
    start, bias = rng.normal(size=(4, 6)), rng.normal(size=6)
    start[:, : 6 // (parts or 2)] *= 0.1
    slopes, of_bias = rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 6))
    joined = variables_of([start, bias])
    if parts:
        declare(joined[0], ("embed", "heads"), parts=parts)
    config = TrainingConfig(optimizer=optimizer, weight_decay=0.1, **PLAIN)
    found, vector = updated(make_optimizer(config), joined, [slopes, of_bias])
    theirs = make_optimizer(config)
    if optimizer == "muon":
        theirs = keras.optimizers.Muon(0.1, weight_decay=0.1, adam_weight_decay=0.1)
    split = variables_of([*np.split(start, parts or 1, axis=1), bias])
    *several, same = updated(theirs, split, [*np.split(slopes, parts or 1, axis=2), of_bias])
    expected = np.concatenate(several, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(vector, same, atol=1e-5)
    assert not np.allclose(expected, start, atol=1e-3)


def test_a_saved_block_of_ones_own_says_what_its_weights_are(tmp_path, monkeypatch):
    """Optimizers and meshes read the declarations of the block in docs/own_block.md."""
    guides.write_modules(tmp_path, pathlib.Path("docs/own_block.md").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    inputs = keras.Input((None, 6))
    block = importlib.import_module("my_gates").GatesBlock(num_heads=2, feed_forward_dim=16)
    keras.Model(inputs, block(inputs)).save(tmp_path / "model.keras")
    weights = keras.models.load_model(tmp_path / "model.keras").trainable_variables
    specs = {"/".join(w.path.split("/")[-2:]): spec_of(w) for w in weights}
    found = {name: dataclasses.astuple(spec) for name, spec in specs.items() if spec.axes[-1]}
    assert found == {
        "query_key_value/kernel": (("embed", "heads"), 3, True),
        "query_key_value/bias": (("heads",), 3, False),
        "output/kernel": (("heads", "embed"), 1, True),
        "output/bias": (("embed",), 1, False),
        "both/kernel": (("embed", "mlp"), 2, True),
        "gates/biases": ((None, "mlp"), 1, False),
        "last/kernel": (("mlp", "embed"), 1, True),
        "last/bias": (("embed",), 1, False),
    }


def test_adafactor_keeps_rows_and_columns_alone():
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in ((40, 30), (7,))]
    optimizer = make_optimizer(TrainingConfig(optimizer="adafactor"), variables)
    optimizer.build(variables)
    shapes = [tuple(v.shape) for v in optimizer.variables if len(v.shape)]
    assert shapes == [(40,), (30,), (7,)]


def test_a_rate_that_float32_rounds_to_0_is_refused():
    for rate in (0.0, 1e-45, -1e-3):
        refuses(f"={rate} must be a number of at least 1.2e-3", TrainingConfig, learning_rate=rate)


OWN = """
import keras


class Momentum(keras.optimizers.SGD):
    def __init__(self, learning_rate=0.1, decay=0.5, **kwargs):
        super().__init__(learning_rate, momentum=decay, **kwargs)


class Clips(Momentum):
    def __init__(self, learning_rate):
        super().__init__(learning_rate, clipnorm=1.0)


class Fails(Momentum):
    def __init__(self, learning_rate, rate):
        raise RuntimeError(f"no {rate}")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "stranger_steps.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "stranger_steps"
    sys.modules.pop("stranger_steps", None)


@pytest.mark.parametrize("name", ["bert_tiny", "t5_tiny", "swish_rnn_tiny"])
def test_muon_is_for_the_matrices_inside_blocks(name):
    """Tables of tokens, positions, segments and distances use Adam, whatever their paths are."""
    model = catalog.build(name, vocab_size=50)
    optimizer = make_optimizer(TrainingConfig(optimizer="muon"))
    optimizer.build(model.trainable_variables)
    named = zip(model.trainable_variables, optimizer.adam_velocities, strict=True)
    muons = {"/".join(v.path.split("/")[-2:]) for v, velocity in named if velocity is None}
    inner = {"inner/kernel", "outer/kernel", "output/kernel", "query_key_value/kernel"}
    cross = {"query/kernel", "key_value/kernel"} if name == "t5_tiny" else set()
    assert muons == inner | cross


def test_vectors_are_spared_from_decay_and_arguments_arrive():
    rng = np.random.default_rng(0)
    starts = [rng.normal(size=(2, 3)), rng.normal(size=3)]
    gradients = [np.zeros((1, *start.shape)) for start in starts]
    decay = {"weight_decay": 0.1, "decay_vectors": False}
    config = TrainingConfig(optimizer="sgd(momentum=0.5)", **decay, **PLAIN)
    variables = variables_of(starts)
    optimizer = make_optimizer(config, variables)
    matrix, vector = updated(optimizer, variables, gradients)
    np.testing.assert_allclose(matrix, 0.99 * starts[0], rtol=1e-6)
    np.testing.assert_array_equal(vector, starts[1].astype("float32"))
    assert optimizer.momentum == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "own"])
def test_a_stopped_run_goes_on_to_the_bit(tmp_path, own, name):
    """A stopped run resumes bit-identically, with dropout, accumulation and clipping."""
    if name == "own":
        name = f"{own}:Momentum(decay=0.7)"
    config = dataclasses.replace(CONFIG, optimizer=name)
    _, whole = run(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", config, callbacks=[StopAt(13, killed)])
    _, resumed = run(tmp_path / "stopped", config)
    assert_same(resumed.network.variables, whole.network.variables)
    assert_same(resumed.optimizer.variables, whole.optimizer.variables)
    metrics = [(tmp_path / one / "metrics.jsonl").read_bytes() for one in ("whole", "stopped")]
    assert metrics[0] == metrics[1]


def test_refusals(own):
    def make(name):
        make_optimizer(TrainingConfig(optimizer=name))

    refuses("must not set clipnorm: set training.clip_norm", make, "lion(clipnorm=1.0)")
    refuses("is not NAME or NAME", make, "sgd(0.9)")
    refuses("is not NAME or NAME", make, "sgd(momentum=open('x'))")
    refuses("lion raised ValueError", make, "lion(beta_1=0)")
    refuses("takes no arguments", make, "adam(beta_1=0.8)")
    refuses("Clips sets clipnorm itself: set training.clip_norm", make, f"{own}:Clips")
    refuses("Fails.* no 1", make, f"{own}:Fails(rate=1)")
