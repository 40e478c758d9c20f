"""Sums that the task objectives compute agree with NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import TemporalConfig, TemporalModel
from macaron_tf.objectives import (
    ClassificationObjective,
    CosineObjective,
    MultiLabelObjective,
    PairClassificationObjective,
    SequenceObjective,
    SpanObjective,
    TaggingObjective,
    TripletObjective,
)
from macaron_tf.objectives.base import cross_entropy
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import built, ids, normal, numpy_of, rejects
from tests.toys.objectives import CONFIG, floats, nll_of, scored


def answering(logits):
    """Returns a network that always returns `logits`."""

    def network(inputs, training):
        assert set(inputs) == {"token_ids", "segment_ids"}
        return tf.convert_to_tensor(logits)

    network.config = CONFIG
    return network


def batch_of(label, weight):
    """Returns a batch of rows with 12 positions.

    Segment 1 begins at position 4, and the last 3 positions are padding.
    """
    tokens = ids(len(weight), 12)
    tokens[:, 9:] = 0
    batch = {
        "token_ids": tokens,
        "segment_ids": np.where((np.arange(12) >= 4) & (tokens > 0), 1, 0).astype("int32"),
        "label": label,
        "weight": np.float32(weight),
    }
    return {name: tf.constant(value) for name, value in batch.items()}


def sentences_of(count, weight, label=None):
    """Returns a batch of examples with `count` sentences each.

    Every sentence has 4 tokens and 2 positions of padding.
    """
    tokens = ids(len(weight), count, 6)
    tokens[:, :, 4:] = 0
    batch = {"token_ids": tf.constant(tokens), "weight": tf.constant(weight, tf.float32)}
    return batch if label is None else {**batch, "label": tf.constant(label)}


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("bfloat16", 0.02)])
def test_cross_entropy_of_the_rows_that_count(dtype, tolerance):
    logits = normal(5, 3)
    labels = np.array([0, 2, 1, 1, -1], "int32")  # padding may have any label
    batch = batch_of(labels, [1, 1, 1, 1, 0])
    network = answering(tf.cast(logits, dtype))
    sums = floats(ClassificationObjective(3)(network, batch, training=False))
    nll, right, _ = scored(logits, labels, batch["weight"])
    assert sums["loss_sum"] == pytest.approx(nll, rel=tolerance)
    assert (sums["weight"], sums["correct_sum"], sums["input_tokens"]) == (4, right, 45)
    metrics = metrics_from_sums(sums)
    assert metrics["loss"] == pytest.approx(nll / 4, rel=tolerance)
    assert metrics["accuracy"] == right / 4


def test_each_of_several_classes_is_a_decision():
    logits = normal(4, 3)
    labels = np.array([[0, 0, 0], [1, 1, 1], logits[2] > 0, [-1, 9, 0]], "int32")
    batch = batch_of(labels, [1, 1, 1, 0])
    sums = floats(MultiLabelObjective()(answering(logits), batch, training=False))
    chances = 1 / (1 + np.exp(-logits[:3].astype("float64")))
    nll = -np.log(np.where(labels[:3] > 0, chances, 1 - chances)).mean(axis=1)
    right = ((logits[:3] > 0) == (labels[:3] > 0)).all(axis=1).sum()
    assert sums["loss_sum"] == pytest.approx(nll.sum(), rel=1e-6)
    assert (sums["weight"], sums["correct_sum"]) == (3, right)


def test_squared_error_of_a_number():
    logits, labels = normal(4, 1), np.array([1.5, 0.0, 5.0, np.nan], "float32")
    batch = batch_of(labels, [1, 1, 1, 0])
    sums = floats(ClassificationObjective(1)(answering(logits), batch, training=False))
    expected = ((logits[:3, 0] - labels[:3]) ** 2).sum()
    assert sums["loss_sum"] == pytest.approx(expected, rel=1e-6)
    assert set(sums) == {"loss_sum", "weight", "input_tokens"}


def test_spans_are_two_cross_entropies():
    logits = normal(3, 2, 12)
    labels = np.array([[4, 6], [0, 0], [-7, 99]], "int32")
    batch = batch_of(labels, [1, 1, 0])
    sums = floats(SpanObjective()(answering(logits), batch, training=False))
    assert sums["loss_sum"] == pytest.approx(nll_of(logits[:2], labels[:2]).sum() / 2, rel=1e-6)
    assert sums["weight"] == 2 and sums["input_tokens"] == 27
    right = [logits[0].argmax(-1).tolist() == [4, 6], logits[1].argmax(-1).tolist() == [0, 0]]
    assert sums["correct_sum"] == sum(right)
    sure = np.full((3, 2, 12), -9.0, "float32")
    sure[0, 0, 4] = sure[0, 1, 6] = sure[1, :, 1] = 9.0
    sums = SpanObjective()(answering(sure), batch, training=False)
    assert metrics_from_sums(floats(sums))["accuracy"] == 0.5


@pytest.mark.parametrize("labels", [(2, 1), (3, 2), (2,)])
def test_labels_of_another_shape_than_the_logits(labels):
    rejects("incompatible", cross_entropy, tf.zeros(labels, tf.int32), tf.zeros((2, 3, 4)))


def test_tags_count_once_a_word():
    logits = normal(2, 12, 3)
    label = np.zeros((2, 12), "int32")
    label[0, [1, 3]], label[1, 2] = [1, 3], 2
    batch = batch_of(np.concatenate([label, label + 7]), [1, 1, 0, 0])
    network = answering(np.concatenate([logits, logits]))
    sums = floats(TaggingObjective(3)(network, batch, training=False))
    nll, right, _ = scored(logits, label - 1, label)
    assert sums["loss_sum"] == pytest.approx(nll, rel=1e-6)
    assert (sums["weight"], sums["correct_sum"]) == (3, right)


class Vectors:
    """A Siamese network that always returns the vectors given to its constructor."""

    num_classes, config = 3, CONFIG

    def __init__(self, vectors, kernel=None):
        self.vectors, self.kernel = tf.constant(vectors), kernel

    def __call__(self, inputs, training):
        assert set(inputs) == {"token_ids"}
        return self.vectors

    def pair_logits(self, u, v, training=None):
        return tf.concat([u, v, tf.abs(u - v)], axis=1) @ self.kernel


def check_losses(sums, losses):
    sums = floats(sums)
    assert set(sums) == {"loss_sum", "weight", "input_tokens"}
    assert sums["loss_sum"] == pytest.approx(losses.sum(), rel=1e-5)
    assert sums["weight"] == len(losses)


def test_softmax_over_a_pair_s_classes():
    x, kernel = normal(5, 2, 8), normal(24, 3, seed=1)
    labels = np.array([0, 2, 1, 1, -1], "int32")
    batch = sentences_of(2, [1, 1, 1, 1, 0], labels)
    sums = PairClassificationObjective(3)(Vectors(x, kernel), batch, training=False)
    u, v = x[:4, 0], x[:4, 1]
    check_losses(sums, nll_of(np.concatenate([u, v, np.abs(u - v)], axis=1) @ kernel, labels[:4]))
    assert float(sums["input_tokens"]) == 5 * 2 * 4


def test_squared_error_of_the_cosine():
    x, labels = normal(4, 2, 8), np.array([5.0, 0.0, 2.5, np.nan], "float32")
    batch = sentences_of(2, [1, 1, 1, 0], labels)
    u, v = x[:3, 0], x[:3, 1]
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    losses = (cosine - labels[:3] / 5) ** 2
    check_losses(CosineObjective(0.0, 5.0)(Vectors(x), batch, training=False), losses)
    shifted = {**batch, "label": batch["label"] * 0.4 + 1}  # from 1 to 3
    check_losses(CosineObjective(1.0, 3.0)(Vectors(x), shifted, training=False), losses)


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_triplets_want_a_margin(margin):
    x = normal(9, 3, 8)
    a, p, n = x[:8, 0], x[:8, 1], x[:8, 2]
    gap = np.linalg.norm(a - p, axis=1) - np.linalg.norm(a - n, axis=1)
    losses = np.maximum(gap + margin, 0)
    assert (losses == 0).any() == (margin == 1.0) and (losses > 0).any()
    batch = sentences_of(3, [1] * 8 + [0])
    check_losses(TripletObjective(margin)(Vectors(x), batch, training=False), losses)


def test_equal_sentences_have_a_gradient():
    """If the anchor is its own positive, the gradient of the distance 0 is not NaN."""
    vectors = tf.Variable(normal(4, 3, 8)[:, [0, 0, 2]])
    with tf.GradientTape() as tape:
        loss = TripletObjective(margin=9.0).loss(None, vectors.value(), None)
    assert np.isfinite(tape.gradient(loss, vectors)).all()


CLASSES = batch_of(np.int32([0, 1]), [1, 1])
TAGS = batch_of(np.ones((2, 12), "int32"), [1, 1])
PAIRS, TWO = sentences_of(2, [1, 1], np.int32([0, 0])), Vectors(normal(2, 2, 8))


@pytest.mark.parametrize(
    ("objective", "network", "batch", "message"),
    [
        (ClassificationObjective(2), answering(np.zeros((2, 3))), CLASSES, "num_classes=2 must be"),
        (TaggingObjective(2), answering(np.zeros((2, 12, 3))), TAGS, "num_tags=2 must be"),
        (PairClassificationObjective(2), TWO, PAIRS, "num_classes=2 must be .*, 3"),
    ],
)
def test_a_network_that_does_not_fit_is_named(objective, network, batch, message):
    rejects(message, objective, network, batch, training=False)


WEIGHT = np.arange(7)[None] < np.array([[7], [3]])
PRESSED = (normal(2, 7, 5, seed=1) > 0).astype("float32")


def temporal(**changes):
    return built(TemporalModel, TemporalConfig(5, (6,), input_dim=4, **changes))


def sequences_of(targets, weight=WEIGHT):
    batch = {"inputs": normal(2, 7, 4), "targets": targets, "weight": np.float32(weight)}
    return {name: tf.constant(value) for name, value in batch.items()}


def test_keys_are_summed_in_a_frame_and_frames_counted():
    model, batch = temporal(), sequences_of(PRESSED)
    sums = floats(SequenceObjective("bernoulli")(model, batch, training=True))
    p = 1 / (1 + np.exp(-numpy_of(model(batch["inputs"])).astype("float64")))
    nll = -(PRESSED * np.log(p) + (1 - PRESSED) * np.log(1 - p)).sum(-1)
    assert sums == {"loss_sum": pytest.approx((nll * WEIGHT).sum(), rel=1e-5), "weight": 10}


def test_classes_of_positions():
    labels = np.random.default_rng(0).integers(0, 5, (2, 7)).astype("int32")
    model, batch = temporal(), sequences_of(labels)
    sums = floats(SequenceObjective("classes")(model, batch, training=False))
    nll, right, _ = scored(numpy_of(model(batch["inputs"])), labels, WEIGHT)
    assert sums["loss_sum"] == sums["nll_sum"] == pytest.approx(nll, rel=1e-5)
    assert sums["correct_sum"] == right


def test_one_answer_a_sequence_is_a_mean_square_of_its_numbers():
    targets = normal(2, 5, seed=1)
    model, batch = temporal(last_only=True), sequences_of(targets, [1.0, 0.0])
    sums = floats(SequenceObjective("squared_error")(model, batch, training=True))
    error = ((numpy_of(model(batch["inputs"])) - targets) ** 2).mean(-1)
    assert sums == {"loss_sum": pytest.approx(error[0], rel=1e-5), "weight": 1}
