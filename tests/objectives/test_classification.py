import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderClassifier, EncoderConfig
from macaron_tf.objectives import ClassificationObjective
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import ids, normal


def network_of(logits):
    def network(inputs, training):
        assert set(inputs) == {"token_ids", "segment_ids"}
        return logits

    return network


def batch_of(labels, weights):
    tokens = ids(len(labels), 6)
    tokens[:, 4:] = 0
    return {
        "token_ids": tf.constant(tokens),
        "segment_ids": tf.zeros_like(tokens),
        "label": tf.constant(labels),
        "weight": tf.constant(weights, tf.float32),
        "index": tf.range(len(labels)),
    }


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("bfloat16", 0.02)])
def test_cross_entropy_of_the_rows_that_count(dtype, tolerance):
    logits = normal(5, 3)
    labels = np.array([0, 2, 1, 1, -1], "int32")  # the label of padding may be anything
    batch = batch_of(labels, [1, 1, 1, 1, 0])
    network = network_of(tf.cast(logits, dtype))
    sums = ClassificationObjective(3)(network, batch, training=False)
    wide = logits.astype("float64")[:4]
    nll = np.log(np.exp(wide).sum(1)) - wide[np.arange(4), labels[:4]]
    assert float(sums["loss_sum"]) == pytest.approx(nll.sum(), rel=tolerance)
    assert float(sums["weight"]) == 4
    assert float(sums["correct_sum"]) == (wide.argmax(1) == labels[:4]).sum()
    assert float(sums["input_tokens"]) == 20
    assert all(value.dtype == tf.float32 for value in sums.values())
    metrics = metrics_from_sums({name: float(value) for name, value in sums.items()})
    assert metrics["loss"] == pytest.approx(nll.mean(), rel=tolerance)
    assert metrics["accuracy"] == float(sums["correct_sum"]) / 4


def test_squared_error_of_a_number():
    logits, labels = normal(4, 1), np.array([1.5, 0.0, 5.0, np.nan], "float32")
    batch = batch_of(labels, [1, 1, 1, 0])
    network = network_of(tf.constant(logits))
    sums = ClassificationObjective(1)(network, batch, training=False)
    expected = ((logits[:3, 0] - labels[:3]) ** 2).sum()
    assert float(sums["loss_sum"]) == pytest.approx(expected, rel=1e-6)
    assert set(sums) == {"loss_sum", "weight", "input_tokens"}


def test_another_number_of_classes_is_refused():
    batch = batch_of(np.array([0, 1], "int32"), [1, 1])
    with pytest.raises(ValueError, match="num_classes=2, but the network scores 3"):
        ClassificationObjective(2)(network_of(tf.zeros((2, 3))), batch, training=True)
    with pytest.raises(ValueError, match="num_classes=0 must be"):
        ClassificationObjective(0)


@pytest.mark.parametrize("num_classes", [1, 3])
def test_padding_rows_leave_the_classifier_gradient_as_it_is(num_classes):
    keras.utils.set_random_seed(0)
    config = EncoderConfig(24, 16, 32, 2, 1, dropout=0.0, attention_dropout=0.0)
    network = EncoderClassifier(config, num_classes)
    network.build()
    kind = "float32" if num_classes == 1 else "int32"
    batch = batch_of(np.array([0, 2, 1], kind), [1, 1, 1])
    padded = {name: tf.concat([value, tf.zeros_like(value)], 0) for name, value in batch.items()}
    objective, gradients = ClassificationObjective(num_classes), []
    for one in (batch, padded):
        with tf.GradientTape() as tape:
            loss = objective(network, one, training=False)["loss_sum"]
        weights = [variable.value for variable in network.trainable_variables]
        gradients.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)])
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
