import numpy as np

from macaron_tf.layers import ClassificationHead, Pooler, SpanHead
from tests.harness import check_layer, normal, numpy_of


def test_contracts():
    check_layer(Pooler(), normal(2, 5, 8))
    check_layer(ClassificationHead(3, dropout=0.5), normal(2, 8))


def test_pooler_is_tanh_of_the_first_position():
    x, pooler = normal(2, 5, 8), Pooler()
    pooled = numpy_of(pooler(x))
    expected = np.tanh(x[:, 0] @ numpy_of(pooler.dense.kernel) + numpy_of(pooler.dense.bias))
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_span_head_scores_starts_and_ends_where_allowed():
    x, head = normal(2, 5, 8), SpanHead(num_spans=3)
    mask = np.arange(5)[None] < np.array([[5], [3]])
    scores = numpy_of(head(x, attention_mask=mask))
    assert scores.shape == (2, 3, 2, 5) == head.compute_output_shape(x.shape)
    assert (scores[1, :, :, 3:] == -1e9).all()
    dense = numpy_of(head.dense(x))  # (B, L, 2 N): start and end of each span side by side
    np.testing.assert_allclose(scores[0, 2, 1], dense[0, :, 5], atol=1e-6)
    np.testing.assert_allclose(scores[0, 1, 0], dense[0, :, 2], atol=1e-6)
