"""Metrics for sentence embeddings."""

import numpy as np

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

    Distances are L2 distances of vectors `(N, D)`; equal ones count as wrong. The share is 0 if N
    is 0, or NaN if a vector is not finite.
    """
    near, far = (np.linalg.norm(anchor - other, axis=-1) for other in (positive, negative))  # (N,)
    if not np.isfinite(near + far).all():
        return float("nan")
    return float(np.mean(near < far)) if len(near) else 0.0
