import math

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.objectives.causal_language import (
    log_probability,
    log_uniform,
    sampled_cross_entropy,
)


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
