import math

import keras
import numpy as np
import pytest

from macaron_tf.layers import FeedForward, activation, gelu_tanh
from tests.harness import check_layer, normal, numpy_of

X = np.linspace(-5, 5, 101, dtype="float32")


def test_gelu_is_exact_and_its_tanh_form_is_not():
    exact = np.array([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X])
    np.testing.assert_allclose(numpy_of(activation("gelu")(X)), exact, atol=1e-6)
    error = np.abs(numpy_of(activation("gelu_tanh")(X)) - exact).max()
    assert 1e-4 < error < 5e-4
    np.testing.assert_allclose(
        numpy_of(gelu_tanh(X)), numpy_of(keras.ops.gelu(X, approximate=True)), atol=1e-6
    )


def test_a_layer_with_either_is_made_again_from_its_config():
    for name in ("gelu", "gelu_tanh"):
        check_layer(FeedForward(8, activation=name), normal(2, 3, 4))


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="geluu"):
        activation("geluu")
