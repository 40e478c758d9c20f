"""Parts of ELMo: character CNN, LSTMs with projections, mixture. Their equations: test_elmo."""

import numpy as np
import pytest

from macaron_tf.layers import CharacterCNN, LayerMixture, ProjectedLSTM
from macaron_tf.layers.character_cnn import Highway
from tests.harness import check_layer, ids, normal, numpy_of


def test_contracts():
    check_layer(CharacterCNN(((1, 3), (2, 4)), 5, vocab_size=20), ids(2, 4, 6))
    check_layer(ProjectedLSTM(6, 3, clip=None, backwards=True), normal(2, 5, 4))
    check_layer(Highway(), normal(2, 5, 4))
    check_layer(LayerMixture(), normal(2, 5, 3, 4))


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


def test_words_narrower_than_a_filter_are_refused():
    with pytest.raises(ValueError, match="narrower than a filter of 3"):
        CharacterCNN(((3, 4),), 5)(ids(2, 4, 2))
    with pytest.raises(ValueError, match=r"filters=\(\) must be"):
        CharacterCNN(())
