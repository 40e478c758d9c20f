import numpy as np
import pytest
import scipy.special

from macaron_tf.layers import MaskedLanguageHead, ReplacedTokenHead, SpanBoundaryHead
from tests.harness import check_layer, normal, numpy_of

PLACES = np.array([[0, 1, 2, 3, 9], [4, 0, 0, 1, 2]])


def gelu(x):
    return x * scipy.special.ndtr(x)


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def transformed(x, dense):
    return normalized(gelu(x @ numpy_of(dense.kernel) + numpy_of(dense.bias)))


def randomized(head):
    """Weights of unit size, LayerNorms left out: what is not 0 or near it can be told apart."""
    for i, weight in enumerate(head.weights):
        if "norm" not in weight.path:
            weight.assign(normal(*weight.shape, seed=i))
    return head


def test_contracts():
    x, table = normal(2, 5, 8), normal(11, 8, seed=1)
    check_layer(MaskedLanguageHead(11), x, table)
    check_layer(MaskedLanguageHead(11), x, normal(11, 6))
    check_layer(MaskedLanguageHead(11, transform=False), x, table)
    check_layer(SpanBoundaryHead(11, max_span=4, place_dim=3), x, x[::-1], PLACES, table)
    check_layer(SpanBoundaryHead(11), x, x[::-1], PLACES, normal(11, 6))
    check_layer(ReplacedTokenHead(), x)


@pytest.mark.parametrize("width", [8, 6])
def test_masked_language_head_scores_with_the_embedding_table(width):
    x, table, head = normal(3, 8), normal(11, width, seed=1), MaskedLanguageHead(11)
    head(x, table)
    randomized(head)
    expected = transformed(x, head.dense) @ table.T + numpy_of(head.bias)
    np.testing.assert_allclose(numpy_of(head(x, table)), expected, atol=1e-4)
    shapes = sorted(tuple(weight.shape) for weight in head.weights)
    assert shapes == sorted([(8, width), (width,), (width,), (width,), (11,)])


def test_masked_language_head_without_a_transformation_is_the_tied_table():
    x, table, head = normal(3, 8), normal(11, 8, seed=1), MaskedLanguageHead(11, transform=False)
    head(x, table)
    assert len(head.weights) == 1
    head.bias.assign(normal(11, seed=2))
    expected = x @ table.T + numpy_of(head.bias)
    np.testing.assert_allclose(numpy_of(head(x, table)), expected, atol=1e-5)
    with pytest.raises(ValueError, match="6 wide, cannot score vectors of 8"):
        MaskedLanguageHead(11, transform=False)(x, normal(11, 6))


def test_span_boundary_head_is_the_papers_formula():
    left, right, table = normal(2, 5, 8), normal(2, 5, 8, seed=1), normal(11, 6, seed=2)
    head = SpanBoundaryHead(11, max_span=5, place_dim=3)
    head(left, right, PLACES, table)
    randomized(head)
    places = numpy_of(head.places)[np.minimum(PLACES, 4)]  # place 9 shares the last
    x = np.concatenate([left, right, places], axis=-1)
    x = transformed(transformed(x, head.dense_0), head.dense_1)
    expected = x @ table.T + numpy_of(head.bias)
    np.testing.assert_allclose(numpy_of(head(left, right, PLACES, table)), expected, atol=1e-4)


def test_span_boundary_head_has_the_papers_sizes():
    head = SpanBoundaryHead(30_522)
    head.build((None, 768), (None, 768), (None,), (30_522, 768))
    assert head.places.shape == (20, 200)
    assert head.dense_0.kernel.shape == (2 * 768 + 200, 768)


def test_replaced_token_head_is_a_logit_of_every_position():
    x, head = normal(2, 5, 8), ReplacedTokenHead()
    head(x)
    randomized(head)
    inner = gelu(x @ numpy_of(head.dense.kernel) + numpy_of(head.dense.bias))
    expected = inner @ numpy_of(head.answer.kernel)[:, 0] + numpy_of(head.answer.bias)
    np.testing.assert_allclose(numpy_of(head(x)), expected, atol=1e-4)
