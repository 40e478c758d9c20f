import numpy as np
import pytest

from macaron_tf.evaluation import similarity
from tests.harness import normal


def test_cosines_are_what_the_formula_says():
    u, v = normal(20, 8), normal(20, 8, seed=1) * 7
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(u, v, strict=True)]
    np.testing.assert_allclose(similarity.cosines(u, v), expected, atol=1e-6)
    assert (similarity.unit_vectors(np.zeros((2, 4))) == 0).all()


def test_correlations_follow_the_order_and_the_line():
    angles, u = np.array([0.1, 1.4, 0.7, 3.0]), np.tile([1.0, 0.0], (4, 1))
    v = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = similarity.similarity_metrics(u, v, np.array([5.0, 2.0, 3.0, 0.0]))
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(np.corrcoef(np.cos(angles), [5, 2, 3, 0])[0, 1])
    found = similarity.similarity_metrics(u, v, np.array([0.0, 3, 2, 5]))
    assert found["spearman"] == pytest.approx(-1)
    v[0] = np.nan
    assert np.isnan(list(similarity.similarity_metrics(u, v, angles).values())).all()


def test_triplets_are_right_where_the_positive_is_nearer():
    anchor, near, far = np.zeros((3, 2)), np.full((3, 2), 1.0), np.full((3, 2), 2.0)
    assert similarity.triplet_accuracy(anchor, near, far) == 1
    assert similarity.triplet_accuracy(anchor, far, near) == 0
    far[0] = 0.5
    assert similarity.triplet_accuracy(anchor, near, far) == pytest.approx(2 / 3)
    assert np.isnan(similarity.triplet_accuracy(anchor * np.nan, near, far))


def test_of_no_vectors_and_of_one_pair_the_scores_are_0():
    nothing, one = np.zeros((0, 2)), np.ones((1, 2))
    assert similarity.triplet_accuracy(nothing, nothing, nothing) == 0
    for vectors in (nothing, one):
        found = similarity.similarity_metrics(vectors, vectors, vectors[:, 0])
        assert found == {"spearman": 0, "pearson": 0}


@pytest.mark.parametrize("chunk", [7, 64, 1000])
@pytest.mark.parametrize("top", [1, 10, 500])
def test_search_equals_brute_force(chunk, top):
    corpus = similarity.unit_vectors(np.round(normal(300, 4), 1))
    corpus[100:110] = corpus[5]  # ties: the lower index comes first
    queries = np.concatenate([similarity.unit_vectors(normal(6, 4, seed=2)), corpus[5:6]])
    scores, indices = similarity.nearest(queries, corpus, top, chunk)
    assert scores.shape == indices.shape == (7, min(top, 300))
    for query, row, found in zip(queries, scores, indices, strict=True):
        exact = corpus.astype("float64") @ query.astype("float64")
        np.testing.assert_allclose(row, np.sort(exact)[::-1][: len(row)], atol=1e-6)
        np.testing.assert_allclose(exact[found], row, atol=1e-6)
        assert len(set(found)) == len(found)
    assert indices[-1, 0] == 5
    if top == 10:
        assert indices[-1].tolist() == [5, *range(100, 109)]


def test_an_empty_corpus_has_no_answers():
    scores, indices = similarity.nearest(normal(2, 4), np.zeros((0, 4), "float32"), 5)
    assert scores.shape == indices.shape == (2, 0)
