"""Parts of ELMo: character CNN, LSTMs with projections, mixture. Their equations: test_elmo."""

import numpy as np

from macaron_tf.layers import LayerMixture, ProjectedLSTM
from tests.harness import normal, numpy_of


def test_a_mixture_starts_as_the_mean_and_is_a_softmax():
    layer, layers = LayerMixture(), normal(2, 5, 3, 4)
    np.testing.assert_allclose(numpy_of(layer(layers)), layers.mean(2), atol=1e-6)
    scores, gamma = np.array([0.0, 1.0, -2.0], "float32"), np.float32(1.5)
    layer.set_weights([scores, gamma])
    weights = np.exp(scores) / np.exp(scores).sum()
    expected = 1.5 * np.einsum("bljd,j->bld", layers, weights)
    np.testing.assert_allclose(numpy_of(layer(layers)), expected, atol=1e-6)


def test_the_state_passes_through_padding():
    x = normal(2, 7, 4)
    mask = np.array([[True] * 7, [True] * 4 + [False] * 3])
    for backwards in (False, True):
        layer = ProjectedLSTM(6, 3, backwards=backwards)
        whole = numpy_of(layer(x, mask=mask))
        np.testing.assert_allclose(whole[1:, :4], numpy_of(layer(x[1:, :4])), atol=1e-6)
