"""Tests of Keras's optimizers by name, and of user-defined optimizers."""

import dataclasses
import sys

import keras
import numpy as np
import pytest

from macaron_tf.models import catalog
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.variables import declare
from tests.harness import refuses
from tests.toys.training import CONFIG, StopAt, assert_same, killed, run, updated, variables_of

PLAIN = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 0}
OWN = '''
import keras
from keras import ops


class Momentum(keras.optimizers.Optimizer):
    """Keras's own example."""

    def __init__(self, learning_rate=0.1, decay=0.5, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.decay = decay

    def build(self, variables):
        super().build(variables)
        self.momenta = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momenta[self._get_variable_index(variable)]
        self.assign(momentum, self.decay * momentum + gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * momentum)


class Clips(Momentum):
    def __init__(self, learning_rate):
        super().__init__(learning_rate, clipnorm=1.0)


class Fails(Momentum):
    def __init__(self, learning_rate, rate):
        raise RuntimeError(f"no {rate}")


class Closed(Momentum):
    def __init__(self):
        super().__init__()
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "stranger_steps.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "stranger_steps"
    sys.modules.pop("stranger_steps", None)


def test_muon_takes_matrices_side_by_side_one_by_one():
    """Muon updates queries, keys and values as Keras's Muon updates three separate matrices."""
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(4, 9)), rng.normal(size=9)
    slopes, of_bias = rng.normal(size=(3, 4, 9)), rng.normal(size=(3, 9))
    variables = variables_of([kernel, bias])
    declare(variables[0], ("embed", "heads"), parts=3)
    optimizer = make_optimizer(TrainingConfig(optimizer="muon", weight_decay=0.1, **PLAIN))
    found = updated(optimizer, variables, [slopes, of_bias])
    theirs = keras.optimizers.Muon(0.1, weight_decay=0.1, adam_weight_decay=0.1)
    parts = variables_of([*np.split(kernel, 3, axis=1), bias])
    *expected, vector = updated(theirs, parts, [*np.split(slopes, 3, axis=2), of_bias])
    np.testing.assert_allclose(found[0], np.concatenate(expected, axis=1), atol=1e-5)
    np.testing.assert_allclose(found[1], vector, atol=1e-5)


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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_schedule_free_adamw_is_the_papers(weight_decay):
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=5), rng.normal(size=(6, 5)).astype("float32")
    name = "schedule_free_adamw(beta_2=0.99, warmup_steps=2)"
    config = TrainingConfig(optimizer=name, weight_decay=weight_decay, **PLAIN)
    variables = variables_of([start])
    optimizer = make_optimizer(config, variables)
    [weights] = updated(optimizer, variables, [gradients])
    x, y, z, v = start, start, start, 0.0
    for t, g in enumerate(gradients, start=1):
        v = 0.99 * v + 0.01 * g**2
        step = g / (np.sqrt(v / (1 - 0.99**t)) + 1e-8) + weight_decay * y
        z = z - 0.1 * min(t / 2, 1) * step
        x = (1 - 1 / t) * x + z / t
        y = 0.1 * z + 0.9 * x
    np.testing.assert_allclose(weights, y, atol=1e-6)
    np.testing.assert_allclose(optimizer.averages()[0], x, atol=1e-6)


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
@pytest.mark.parametrize("name", ["muon", "schedule_free_adamw", "own"])
def test_a_stopped_run_goes_on_to_the_bit(tmp_path, own, name):
    """A stopped run resumes bit-identically, with dropout, accumulation and clipping."""
    ema_decay = None if name == "schedule_free_adamw" else 0.9
    if name == "own":
        name = f"{own}:Momentum(decay=0.7)"
    config = dataclasses.replace(CONFIG, optimizer=name, ema_decay=ema_decay)
    _, whole = run(tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", config, callbacks=[StopAt(13, killed)])
    _, resumed = run(tmp_path / "stopped", config)
    assert_same(resumed.network.variables, whole.network.variables)
    assert_same(resumed.optimizer.variables, whole.optimizer.variables)
    metrics = [(tmp_path / one / "metrics.jsonl").read_bytes() for one in ("whole", "stopped")]
    assert metrics[0] == metrics[1]
    average = tmp_path / "stopped/checkpoints/step-00000020/ema.weights.h5"
    evaluated = keras.models.clone_model(resumed.network)
    evaluated.load_weights(average)
    learnt, judged = resumed.network.get_weights(), evaluated.get_weights()
    assert not np.allclose(learnt[0], judged[0], atol=1e-6)


def test_refusals(own):
    def make(name, **options):
        make_optimizer(TrainingConfig(optimizer=name, **options))

    refuses("must not set clipnorm: set training.clip_norm", make, "lion(clipnorm=1.0)")
    refuses("is not NAME or NAME", make, "sgd(0.9)")
    refuses("is not NAME or NAME", make, "sgd(momentum=open('x'))")
    refuses("lion raised ValueError", make, "lion(beta_1=0)")
    refuses("takes no arguments", make, "adam(beta_1=0.8)")
    refuses("has no effect with schedule_free_adamw", make, "schedule_free_adamw", ema_decay=0.9)
    refuses("Clips sets clipnorm itself: set training.clip_norm", make, f"{own}:Clips")
    refuses("Fails.* no 1", make, f"{own}:Fails(rate=1)")
    refuses("Closed.*learning_rate", make, f"{own}:Closed")
