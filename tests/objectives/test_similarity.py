"""The losses against NumPy, written from the paper's equations; padding; XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderConfig
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.objectives import (
    CosineObjective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.training import build_fit_model
from macaron_tf.training.config import TrainingConfig
from tests.harness import ids, normal, numpy_of

CONFIG = EncoderConfig(
    24, 16, 48, 2, 1, dropout=0.0, attention_dropout=0.0, initializer_range=0.2, max_length=16
)
OBJECTIVES = (PairClassificationObjective(3), CosineObjective(0.0, 5.0), TripletObjective(1.0))


class Vectors:
    """A network that has its vectors already."""

    num_classes = 3

    def __init__(self, vectors, kernel=None):
        self.vectors, self.kernel = tf.constant(vectors), kernel

    def __call__(self, inputs, training):
        assert set(inputs) == {"token_ids"}
        return self.vectors

    def pair_logits(self, u, v, training=None):
        return tf.concat([u, v, tf.abs(u - v)], axis=1) @ self.kernel


def batch_of(sentences, weights, labels=None):
    tokens = ids(len(weights), sentences, 6)
    tokens[:, :, 4:] = 0
    batch = {"token_ids": tf.constant(tokens), "weight": tf.constant(weights, tf.float32)}
    if labels is not None:
        batch["label"] = tf.constant(labels)
    return batch


def checked(sums, losses, sentences):
    assert float(sums["loss_sum"]) == pytest.approx(losses.sum(), rel=1e-5)
    assert float(sums["weight"]) == len(losses)
    assert set(sums) == {"loss_sum", "weight", "input_tokens"}
    assert all(value.dtype == tf.float32 for value in sums.values())


def test_softmax_over_the_classes():
    x, kernel = normal(5, 2, 8), normal(24, 3, seed=1)
    labels = np.array([0, 2, 1, 1, -1], "int32")  # the label of padding may be anything
    batch = batch_of(2, [1, 1, 1, 1, 0], labels)
    sums = PairClassificationObjective(3)(Vectors(x, kernel), batch, training=False)
    u, v = x[:4, 0], x[:4, 1]
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ kernel
    exp = np.exp(logits - logits.max(1, keepdims=True))
    checked(sums, -np.log((exp / exp.sum(1, keepdims=True))[np.arange(4), labels[:4]]), 2)
    assert float(sums["input_tokens"]) == 5 * 2 * 4


def test_squared_error_of_the_cosine():
    x, labels = normal(4, 2, 8), np.array([5.0, 0.0, 2.5, np.nan], "float32")
    batch = batch_of(2, [1, 1, 1, 0], labels)
    u, v = x[:3, 0], x[:3, 1]
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    sums = CosineObjective(0.0, 5.0)(Vectors(x), batch, training=False)
    checked(sums, (cosine - labels[:3] / 5) ** 2, 2)
    shifted = {**batch, "label": batch["label"] * 0.4 + 1}  # from 1 to 3
    sums = CosineObjective(1.0, 3.0)(Vectors(x), shifted, training=False)
    checked(sums, (cosine - labels[:3] / 5) ** 2, 2)


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_triplets_want_a_margin(margin):
    x = normal(9, 3, 8)
    a, p, n = x[:8, 0], x[:8, 1], x[:8, 2]
    gap = np.linalg.norm(a - p, axis=1) - np.linalg.norm(a - n, axis=1)
    losses = np.maximum(gap + margin, 0)
    assert (losses == 0).any() == (margin == 1.0) and (losses > 0).any()
    sums = TripletObjective(margin)(Vectors(x), batch_of(3, [1] * 8 + [0]), training=False)
    checked(sums, losses, 3)


def example(objective, count=4, length=8):
    tokens = ids(count, objective.sentences, length)
    tokens[1, :, 5:] = 0
    batch = {"token_ids": tokens, "weight": np.ones(count, "float32")}
    if objective.sentences == 2:
        kind = "float32" if isinstance(objective, CosineObjective) else "int32"
        batch["label"] = (np.arange(count) % 3).astype(kind)
    return {name: tf.constant(value) for name, value in batch.items()}


def network_for(objective):
    keras.utils.set_random_seed(0)
    network = SiameseEncoder(CONFIG, num_classes=getattr(objective, "num_classes", 0))
    network.build()
    return network


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: type(one).__name__)
def test_padding_rows_leave_the_gradient_as_it_is(objective):
    network, batch = network_for(objective), example(objective)
    padded = {name: tf.concat([value, tf.zeros_like(value)], 0) for name, value in batch.items()}
    gradients = []
    for one in (batch, padded):
        with tf.GradientTape() as tape:
            loss = objective(network, one, training=False)["loss_sum"]
        weights = [variable.value for variable in network.trainable_variables]
        gradients.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)])
    for a, b in zip(*gradients, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_equal_sentences_have_a_gradient():
    """An anchor that is its own positive: the slope of a distance of 0 must not be NaN."""
    objective = TripletObjective()
    network, batch = network_for(objective), example(objective)
    tokens = batch["token_ids"].numpy()
    tokens[:, 1] = tokens[:, 0]
    with tf.GradientTape() as tape:
        batch["token_ids"] = tf.constant(tokens)
        loss = objective(network, batch, training=False)["loss_sum"]
    weights = [variable.value for variable in network.trainable_variables]
    for gradient in tape.gradient(loss, weights):
        assert np.isfinite(tf.convert_to_tensor(gradient)).all()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: type(one).__name__)
def test_a_step_compiles_with_xla_and_learns(objective):
    network, batch = network_for(objective), example(objective)
    config = TrainingConfig(max_steps=6, warmup_steps=0, learning_rate=3e-3, schedule="constant")
    model = build_fit_model(network, objective, config, jit_compile=True)
    before = numpy_of(objective(network, batch, training=False)["loss_sum"])
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    model.fit(dataset, steps_per_epoch=6, epochs=1, verbose=0)
    after = numpy_of(objective(network, batch, training=False)["loss_sum"])
    assert after < before


def test_what_does_not_fit_is_refused():
    cosine = CosineObjective()
    with pytest.raises(ValueError, match="2 sentences an example, not 3"):
        TripletObjective()(Vectors(normal(2, 2, 8)), batch_of(2, [1, 1]), training=False)
    with pytest.raises(ValueError, match="num_classes=2, but the network scores 3"):
        network = Vectors(normal(2, 2, 8), normal(24, 3))
        batch = batch_of(2, [1, 1], np.zeros(2, "int32"))
        PairClassificationObjective(2)(network, batch, training=False)
    for wrong in (lambda: CosineObjective(5, 5), lambda: TripletObjective(0)):
        with pytest.raises(ValueError, match="must be"):
            wrong()
    with pytest.raises(ValueError, match="num_classes"):
        PairClassificationObjective(1)
    assert cosine == CosineObjective(0.0, 5.0)
