import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import Elmo
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.objectives.causal_language import (
    log_probability,
    log_uniform,
    sampled_cross_entropy,
)
from macaron_tf.training.fit_model import FitModel
from tests.harness import numpy_of
from tests.models.test_elmo import CONFIG, built, words
from tests.objectives.toy import check_compiles, floats, loss_and_gradients, nll_of


def batch() -> dict[str, tf.Tensor]:
    characters = words(3, 6)
    answers = np.random.default_rng(1).integers(0, 11, (3, 6)).astype("int32")
    characters[2, 4:], answers[2, 4:] = 0, -1
    return {"characters": tf.constant(characters), "words": tf.constant(answers)}


def test_each_direction_answers_for_its_neighbour():
    model, given = built(), batch()
    sums = floats(BidirectionalLanguageObjective()(model, given, training=False))
    answers = given["words"].numpy()
    forward, backward = (
        numpy_of(model.logits(h)) for h in model.hidden_states(given["characters"])
    )
    expected, correct = {"forward": 0.0, "backward": 0.0}, 0
    for row in range(3):
        for place in range(6):
            for name, scores, other in (
                ("forward", forward, place + 1),
                ("backward", backward, place - 1),
            ):
                if 0 <= other < 6 and answers[row, other] >= 0 and answers[row, place] >= 0:
                    expected[name] += nll_of(scores[row, place], answers[row, other])
                    correct += scores[row, place].argmax() == answers[row, other]
    for name, value in expected.items():
        assert sums[f"{name}_sum"] == pytest.approx(value, rel=1e-5)
        assert sums[f"{name}_weight"] == 5 + 5 + 3
    assert sums["loss_sum"] == sums["nll_sum"] == pytest.approx(sum(expected.values()), rel=1e-5)
    assert sums["weight"] == 26 and sums["correct_sum"] == correct


@pytest.mark.parametrize("samples", [pytest.param(0, marks=pytest.mark.slow), 6])
def test_the_loss_falls(samples):
    given = batch()
    dataset = tf.data.Dataset.from_tensors(given).repeat()
    network = Elmo(CONFIG)
    network.build()
    model = FitModel(network, BidirectionalLanguageObjective(samples))
    model.compile(keras.optimizers.Adam(0.01))
    losses = model.fit(dataset, steps_per_epoch=12, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_an_update_compiles_under_xla():
    network = built(dropout=0.0, num_layers=1)
    check_compiles(BidirectionalLanguageObjective(), network, batch(), tolerance=1e-3)


def test_a_sampled_update_compiles_too_and_a_batch_decides_its_draws():
    objective, network = BidirectionalLanguageObjective(6), built(dropout=0.0, num_layers=1)
    compiled = tf.function(
        lambda batch: loss_and_gradients(objective, network, batch, training=True),
        autograph=False,
        jit_compile=True,
    )
    # XLA draws other numbers from a seed than TensorFlow does.
    first, *slopes = compiled(batch())
    assert np.isfinite(first) and all(np.isfinite(numpy_of(s)).all() for s in slopes)
    assert compiled(batch())[0] == first
    other = batch()
    assert compiled({**other, "words": tf.reverse(other["words"], [1])})[0] != first


@pytest.mark.parametrize("classes", [5, 1000])
def test_classes_are_drawn_as_often_as_said(classes):
    drawn = log_uniform([3, 4], 100_000, classes).numpy()
    assert drawn.min() == 0 and drawn.max() < classes
    k = np.arange(classes)
    expected = np.log((k + 2) / (k + 1)) / math.log(classes + 1)
    assert expected.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.exp(log_probability(k, classes)), expected, rtol=1e-5)
    frequency = np.bincount(drawn, minlength=classes) / len(drawn)
    # Five standard deviations of a frequency out of 100,000 draws.
    assert (abs(frequency - expected) <= 5 * np.sqrt(expected / len(drawn))).all()
    assert (log_uniform([3, 4], 100_000, classes).numpy() == drawn).all()


def toy() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    hidden, kernel = random.normal(size=(4, 3)), random.normal(size=(3, 7))
    return hidden, kernel, random.normal(size=7), np.array([0, 6, 2, 2])


def loss(draw: np.ndarray) -> np.ndarray:
    hidden, kernel, bias, labels = toy()
    floats = (tf.constant(x, tf.float32) for x in (hidden, kernel, bias))
    return sampled_cross_entropy(*floats, tf.constant(labels, tf.int32), draw).numpy()


def test_each_draw_stands_for_a_part_of_its_class():
    hidden, kernel, bias, labels = toy()
    draw = np.array([1, 6, 1, 3, 2], "int32")
    scores = hidden @ kernel + bias
    for row, label in enumerate(labels):
        whole = math.exp(scores[row, label])
        for other in draw:
            if other != label:
                hits = len(draw) * math.log((other + 2) / (other + 1)) / math.log(8)
                whole += math.exp(scores[row, other]) / hits
        assert loss(draw)[row] == pytest.approx(math.log(whole) - scores[row, label], abs=1e-5)


def test_with_many_draws_it_is_the_whole_softmaxs():
    hidden, kernel, bias, labels = toy()
    scores = hidden @ kernel + bias
    whole = np.log(np.exp(scores).sum(1)) - scores[np.arange(4), labels]
    np.testing.assert_allclose(loss(log_uniform([1, 2], 200_000, 7)), whole, atol=0.01)
