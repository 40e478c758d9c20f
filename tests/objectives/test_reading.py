"""The objectives of spans and of tags: their sums, their gradients, padding, XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderConfig, EncoderSpanReader, EncoderTagger
from macaron_tf.objectives import SpanObjective, TaggingObjective
from macaron_tf.training import TrainingConfig, build_fit_model
from macaron_tf.training.updates import metrics_from_sums
from tests.harness import ids, normal

CONFIG = EncoderConfig(24, 16, 32, 2, 1, dropout=0.0, attention_dropout=0.0, max_length=12)


def log_softmax(logits):
    wide = logits.astype("float64")
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def batch_of(label, weight):
    tokens = ids(len(weight), 12)
    tokens[:, 9:] = 0
    segments = np.zeros_like(tokens)
    segments[:, 4:9] = 1
    return {
        "token_ids": tf.constant(tokens),
        "segment_ids": tf.constant(segments),
        "label": tf.constant(label, tf.int32),
        "weight": tf.constant(weight, tf.float32),
    }


def test_spans_are_two_cross_entropies():
    logits = normal(3, 2, 12)
    batch = batch_of([[4, 6], [0, 0], [-7, 99]], [1, 1, 0])
    sums = SpanObjective()(lambda inputs, training: tf.constant(logits), batch, training=False)
    nll = -log_softmax(logits)
    expected = (nll[0, 0, 4] + nll[0, 1, 6] + nll[1, 0, 0] + nll[1, 1, 0]) / 2
    assert float(sums["loss_sum"]) == pytest.approx(expected, rel=1e-6)
    assert float(sums["weight"]) == 2 and float(sums["input_tokens"]) == 27
    right = [logits[0].argmax(-1).tolist() == [4, 6], logits[1].argmax(-1).tolist() == [0, 0]]
    assert float(sums["correct_sum"]) == sum(right)
    sure = np.full((3, 2, 12), -9.0, "float32")
    sure[0, 0, 4] = sure[0, 1, 6] = sure[1, :, 1] = 9.0
    sums = SpanObjective()(lambda inputs, training: tf.constant(sure), batch, training=False)
    assert metrics_from_sums({k: float(v) for k, v in sums.items()})["accuracy"] == 0.5


def test_tags_count_once_a_word():
    logits = normal(2, 12, 3)
    label = np.zeros((2, 12), int)
    label[0, [1, 3]], label[1, 2] = [1, 3], 2
    batch = batch_of(np.concatenate([label, label + 7]), [1, 1, 0, 0])
    both = np.concatenate([logits, logits])
    sums = TaggingObjective(3)(lambda inputs, training: tf.constant(both), batch, training=False)
    nll = -log_softmax(logits)
    expected = nll[0, 1, 0] + nll[0, 3, 2] + nll[1, 2, 1]
    assert float(sums["loss_sum"]) == pytest.approx(expected, rel=1e-6)
    assert float(sums["weight"]) == 3
    best = logits.argmax(-1)
    right = (best[0, 1] == 0) + (best[0, 3] == 2) + (best[1, 2] == 1)
    assert float(sums["correct_sum"]) == right
    with pytest.raises(ValueError, match="num_tags=2, but the network scores 3"):
        TaggingObjective(2)(lambda inputs, training: tf.constant(both), batch, training=True)
    with pytest.raises(ValueError, match="num_tags=0"):
        TaggingObjective(0)


def cases():
    tags = np.zeros((2, 12), int)
    tags[:, 1:5] = [[1, 2, 3, 0], [3, 0, 2, 1]]
    return {
        "spans": (lambda: EncoderSpanReader(CONFIG), SpanObjective(), [[4, 6], [0, 0]]),
        "tags": (lambda: EncoderTagger(CONFIG, 3, 0.0), TaggingObjective(3), tags),
    }


@pytest.mark.parametrize("name", ["spans", "tags"])
def test_padding_rows_leave_the_gradient_as_it_is(name):
    keras.utils.set_random_seed(0)
    make, objective, label = cases()[name]
    network = make()
    network.build()
    batch = batch_of(label, [1, 1])
    padded = {k: tf.concat([value, tf.zeros_like(value)], 0) for k, value in batch.items()}
    gradients = []
    for one in (batch, padded):
        with tf.GradientTape() as tape:
            loss = objective(network, one, training=False)["loss_sum"]
        weights = [variable.value for variable in network.trainable_variables]
        gradients.append([tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)])
    for a, b in zip(*gradients, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["spans", "tags"])
def test_a_step_compiles(name):
    keras.utils.set_random_seed(0)
    make, objective, label = cases()[name]
    network = make()
    network.build()
    batch = batch_of(label, [1, 1])
    config = TrainingConfig(max_steps=30, learning_rate=0.02, schedule="constant", warmup_steps=0)
    model = build_fit_model(network, objective, config, jit_compile=True)
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(30), verbose=0)
    sums = objective(network, batch, training=False)
    assert float(sums["loss_sum"] / sums["weight"]) < 0.3
