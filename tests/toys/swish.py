"""Inputs of SwishRNN's recurrence, and its equations position by position."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import GATES, native
from tests.harness import normal

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 16, 31, 67]
FORMS = [None, *GATES]  # the recurrence alone, and gated


def inputs(length, width, step_size, gate, masked=0, batch=2):
    """Returns x, the weight vectors, a mask and an initial state.

    If `masked` is 0, the mask is `None`. If `masked` is 1, the mask marks padding. If `masked` is
    2, the mask also starts new texts within rows.
    """
    x = 3 * normal(batch, length, width * (1 if gate is None else 2))
    vectors = [1 + normal(width, seed=1), normal(width, seed=2)]
    if gate is not None:
        vectors += [normal(width, seed=3), normal(width, seed=4)]
    mask = np.random.default_rng(5).choice(3, (batch, length), p=(0.3, 0.4, 0.3))
    mask = {0: None, 1: mask > 0, 2: mask}[masked]
    start = normal(batch, step_size, width, seed=6) if masked and gate is None else None
    return x, vectors, mask, start


def by_the_equations(x, vectors, step_size, gate, mask=None, start=None):
    """Computes equations 3 and 4 of Lei et al. 2022 position by position in float64."""
    width = vectors[0].shape[0]
    zeros = tf.zeros((x.shape[0], step_size, width), tf.float64)
    states = list(tf.unstack(zeros if start is None else start, axis=1))
    for i, value in enumerate(tf.unstack(x[..., :width], axis=1)):
        before = states[i]
        if mask is not None and mask.dtype != bool:
            before = tf.where(mask[:, i, None] == 2, tf.zeros_like(before), before)
        u = before - value
        c = tf.sigmoid(vectors[0] * u + vectors[1]) * u + value
        states.append(c if mask is None else tf.where(mask[:, i, None] > 0, c, states[i]))
    c = tf.stack(states[step_size:], axis=1)
    if gate is None:
        return c
    c, z = c + vectors[2], x[..., width:] + vectors[3]
    if gate == "sigmoid":
        return c * tf.sigmoid(z)
    return c * tf.nn.gelu(z, approximate=gate == "gelu_tanh")


def with_gradients(function, dtype, x, vectors, step_size, gate, mask, start):
    """Returns a value and its gradients for x, the vectors and the initial state, as float64."""
    wide = "float64" if dtype == "float64" else "float32"  # all but x are float32 under bfloat16
    x, vectors = tf.cast(x, dtype), [tf.cast(vector, wide) for vector in vectors]
    start = None if start is None else tf.cast(start, wide)
    tensors = [x, *vectors] if start is None else [x, *vectors, start]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(x, vectors, step_size, gate, mask, start)
        weight = tf.cast(normal(*value.shape, seed=7), value.dtype)
        loss = tf.reduce_sum(tf.cast(value * weight, "float64"))
    return [tf.cast(tensor, "float64") for tensor in (value, *tape.gradient(loss, tensors))]


def relative_error(actual, expected):
    """Returns the largest absolute error, divided by the largest expected magnitude."""
    return np.max(np.abs(actual - expected)) / max(np.max(np.abs(expected)), 1e-30)


@pytest.fixture(scope="module", autouse=True)
def built():
    if not native.operations():
        pytest.skip("no C++ compiler, or it fails: see the log")
