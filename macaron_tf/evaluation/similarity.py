"""Metrics for sentence embeddings, and search by cosine similarity."""

import numpy as np
import tensorflow as tf

from macaron_tf.evaluation.glue import pearson, spearman


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scales vectors `(N, D)` to length 1, in float32. A zero vector stays zero."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)  # (N, 1)
    return vectors / np.maximum(lengths, 1e-6)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Computes the cosine similarities `(N,)` of N vector pairs `(N, D)`, in float32."""
    return np.sum(unit_vectors(first) * unit_vectors(second), axis=-1)


def similarity_metrics(
    first: np.ndarray, second: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Correlates the cosines of vectors `(N, D)` with human similarity scores `(N,)`.

    Sentence-BERT is evaluated in this way (Reimers and Gurevych 2019, section 4). "spearman" and
    "pearson" are from -1 to 1, or NaN if a vector is not finite.
    """
    similarities = cosines(first, second)
    if not np.isfinite(similarities).all():
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {"spearman": spearman(similarities, labels), "pearson": pearson(similarities, labels)}


def triplet_accuracy(anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> float:
    """Computes the share of triplets whose anchor is nearer to the positive than to the negative.

    Distances are L2 distances of vectors `(N, D)`. A triplet with two equal distances counts as
    wrong. The share is 0 if N is 0, or NaN if a vector is not finite.
    """
    near, far = (np.linalg.norm(anchor - other, axis=-1) for other in (positive, negative))  # (N,)
    if not np.isfinite(near + far).all():
        return float("nan")
    return float(np.mean(near < far)) if len(near) else 0.0


def nearest(
    queries: np.ndarray, corpus: np.ndarray, top: int, chunk: int = 65_536
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the vectors with the greatest cosine to each query, by exhaustive search.

    Args:
        queries: `(Q, D)` unit vectors.
        corpus: `(N, D)` unit vectors, which may be memory-mapped.
        top: number of vectors to return for each query, limited to N.
        chunk: number of corpus vectors per matrix product. With 768 channels, 65,536 vectors take
            200 MB.

    Returns:
        Cosines `(Q, top)` in descending order, and corpus indices `(Q, top)`. Equal cosines are
        ordered by index.
    """
    top = min(top, len(corpus))
    scores = np.empty((len(queries), 0), np.float32)
    indices = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(corpus), chunk):
        similarities = queries @ corpus[start : start + chunk].T  # (Q, D) x (D, n) -> (Q, n)
        new_indices = np.arange(start, start + similarities.shape[1])
        new_indices = np.broadcast_to(new_indices, similarities.shape)
        # New columns are appended, because `top_k` prefers the first of several equal scores.
        indices = np.concatenate([indices, new_indices], axis=1)
        scores = np.concatenate([scores, similarities], axis=1)
        best, order = tf.math.top_k(scores, min(top, scores.shape[1]))
        scores, indices = best.numpy(), np.take_along_axis(indices, order.numpy(), axis=1)
    return scores, indices
