import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from macaron_tf.kernels.choice import implementation_scope
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.objectives import (
    DenoisingObjective,
    TranslationObjective,
    label_smoothed_cross_entropy,
    shift_right,
)
from macaron_tf.objectives.base import cross_entropy
from tests.harness import built, ids, normal, numpy_of
from tests.toys.objectives import floats, scored


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_cross_entropy_against_the_smoothed_target(smoothing):
    logits, labels = 3 * normal(7, 11), ids(7, vocab_size=11)
    target = (1 - smoothing) * np.eye(11)[labels] + smoothing / 11
    log_p = log_softmax(logits.astype("float64"), axis=-1)
    loss, nll = label_smoothed_cross_entropy(logits, labels, smoothing)
    np.testing.assert_allclose(loss, -(target * log_p).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(nll, -log_p[np.arange(7), labels], rtol=1e-5)


@pytest.mark.parametrize("engine", ["auto", "loop", "xla", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_class_that_is_ruled_out_leaves_numbers(engine, dtype, monkeypatch):
    """If a class has the logit -inf, the loss equals the loss over the other classes."""
    logits = tf.cast([[1, 2, -np.inf, 0], [-np.inf, 2, -np.inf, -np.inf]], dtype)
    labels, expected = tf.constant([0, 1]), [1.407606, 0.0]

    def losses():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(logits)
            smoothed, nll = label_smoothed_cross_entropy(logits, labels, 0.0)
            found = smoothed, cross_entropy(labels, logits)
        return nll, *found, *(tape.gradient(one, logits) for one in found)

    if engine == "jax":  # the JAX branch, on TensorFlow
        monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        engine = "auto"
    with implementation_scope("auto" if engine == "xla" else engine):
        found = tf.function(losses, jit_compile=True)() if engine == "xla" else losses()
    for loss in found[:3]:
        np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-7)
    slope = [[-0.755272, 0.665241, 0.0, 0.090031], [0.0] * 4]
    for gradient in found[3:]:
        np.testing.assert_allclose(tf.cast(gradient, tf.float32), slope, atol=2e-3)


def test_shift_right_starts_with_bos():
    np.testing.assert_array_equal(shift_right(tf.constant([[5, 6, 3, 0]])), [[2, 5, 6, 3]])


@pytest.mark.parametrize("objective", [TranslationObjective(), DenoisingObjective()])
def test_only_real_target_tokens_count(objective):
    drops = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    config = EncoderDecoderConfig(24, 16, 32, 2, 1, 1, block="macaron", **drops)
    network = built(EncoderDecoder, config)
    source, target = ids(3, 6), ids(3, 5, seed=1)
    target[:, -1] = 3
    target[1, 3:] = [3, 0]
    source[2] = target[2] = 0  # a row of padding
    batch = {"source": tf.constant(source), "target": tf.constant(target)}
    sums = floats(objective(network, batch, training=False))
    logits = network({"source": source, "target": shift_right(batch["target"])})
    nll, right, weight = scored(logits, target, target)
    assert (sums["weight"], sums["correct_sum"], sums["source_tokens"]) == (weight, right, 12)
    assert weight == 5 + 4 and sums["nll_sum"] == pytest.approx(nll, rel=1e-5)
    smoothing = getattr(objective, "label_smoothing", 0.0)
    real = target != 0
    loss, _ = label_smoothed_cross_entropy(logits[real], target[real], smoothing)
    assert sums["loss_sum"] == pytest.approx(numpy_of(loss).sum(), rel=1e-5)
