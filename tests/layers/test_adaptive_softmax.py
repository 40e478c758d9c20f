import numpy as np
import pytest

from macaron_tf.layers.softmax import AdaptiveSoftmax
from tests.harness import check_layer, normal, numpy_of


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize(("cutoffs", "divisor"), [((5,), 4), ((4, 9, 20), 2), ((6, 12), 1)])
def test_it_is_the_paper_s_product_and_sums_to_one(cutoffs, divisor):
    x = normal(3, 5, 16)
    layer = AdaptiveSoftmax(30, cutoffs, divisor, initializer_range=0.5)
    layer.build(x.shape)
    layer.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(layer.get_weights())])
    found = numpy_of(layer(x))
    np.testing.assert_allclose(np.exp(found).sum(-1), 1.0, atol=1e-5)
    w = {v.path.split("/", 1)[1]: numpy_of(v).astype("float64") for v in layer.weights}
    head = log_softmax(x @ w["head/kernel"] + w["head/bias"])
    expected = [head[..., : cutoffs[0]]]
    for i, (start, end) in enumerate(zip(cutoffs, (*cutoffs[1:], 30), strict=True), start=1):
        assert w[f"projection_{i}/kernel"].shape == (16, 16 // divisor**i)
        within = x @ w[f"projection_{i}/kernel"] @ w[f"cluster_{i}/kernel"] + w[f"cluster_{i}/bias"]
        assert within.shape[-1] == end - start
        cluster = head[..., cutoffs[0] + i - 1 : cutoffs[0] + i]
        expected.append(cluster + log_softmax(within))
    np.testing.assert_allclose(found, np.concatenate(expected, -1), atol=1e-4)


def test_contract():
    check_layer(AdaptiveSoftmax(12, (4, 8), 2), normal(2, 3, 8), atol=1e-6)


@pytest.mark.parametrize("cutoffs", [(), (0, 4), (4, 4), (4, 12)])
def test_cutoffs_must_ascend_within_the_vocabulary(cutoffs):
    with pytest.raises(ValueError, match="must ascend"):
        AdaptiveSoftmax(12, cutoffs)


def test_a_cluster_needs_a_width():
    with pytest.raises(ValueError, match="divisor=4 leaves no width to cluster 2"):
        AdaptiveSoftmax(12, (4, 8), 4).build((None, 8))
