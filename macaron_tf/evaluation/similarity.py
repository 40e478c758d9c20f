"""Sentence vectors judged and searched by their cosine."""

import numpy as np
import tensorflow as tf

from macaron_tf.evaluation.glue import pearson, spearman


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Vectors (N, D) scaled to length 1, float32; one of zeros stays as it is."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)  # (N, 1)
    return vectors / np.maximum(lengths, 1e-6)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair of (N, D) vectors: (N,) float32, from -1 to 1."""
    return np.sum(unit_vectors(first) * unit_vectors(second), axis=-1)


def similarity_metrics(
    first: np.ndarray, second: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Correlation of pairs' cosines with people's scores (Reimers and Gurevych 2019, section 4).

    Of (N, D) vectors and (N,) scores: "spearman" and "pearson", from -1 to 1; NaN if a vector is
    not finite.
    """
    found = cosines(first, second)
    if not np.isfinite(found).all():
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {"spearman": spearman(found, labels), "pearson": pearson(found, labels)}


def triplet_accuracy(anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> float:
    """Part of the triplets whose anchor is nearer (Euclidean) to the positive than the negative.

    Of (N, D) vectors: from 0 to 1, 0 of no triplet; NaN if a vector is not finite.
    """
    near, far = (np.linalg.norm(anchor - other, axis=-1) for other in (positive, negative))  # (N,)
    if not np.isfinite(near + far).all():
        return float("nan")
    return float(np.mean(near < far)) if len(near) else 0.0


def nearest(
    queries: np.ndarray, corpus: np.ndarray, top: int, chunk: int = 65_536
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of the greatest cosine with each query, by exhaustive search.

    Args:
        queries: (Q, D) unit vectors.
        corpus: (N, D) unit vectors, perhaps mapped into memory.
        top: how many; fewer where the corpus is smaller.
        chunk: vectors compared at once: at D = 768, 200 MB.

    Returns:
        Cosines (Q, top), greatest first, and indices in the corpus (Q, top); of equals the earlier.
    """
    top = min(top, len(corpus))
    scores = np.empty((len(queries), 0), np.float32)
    indices = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(corpus), chunk):
        found = queries @ corpus[start : start + chunk].T  # (Q, D) x (D, n) -> (Q, n)
        numbers = np.broadcast_to(np.arange(start, start + found.shape[1]), found.shape)
        # After the best so far: of equals `top_k` takes the earlier.
        indices = np.concatenate([indices, numbers], axis=1)
        scores = np.concatenate([scores, found], axis=1)
        best, order = tf.math.top_k(scores, min(top, scores.shape[1]))
        scores, indices = best.numpy(), np.take_along_axis(indices, order.numpy(), axis=1)
    return scores, indices
