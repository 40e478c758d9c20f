"""Evaluation: what a set of outputs is worth."""

from macaron_tf.evaluation.glue import decide, score
from macaron_tf.evaluation.language import perplexity
from macaron_tf.evaluation.reading import score_answers, score_tags
from macaron_tf.evaluation.similarity import (
    cosines,
    nearest,
    similarity_metrics,
    triplet_accuracy,
    unit_vectors,
)
from macaron_tf.evaluation.translation import (
    PairedBootstrap,
    TranslationMetric,
    TranslationScores,
    evaluate_translations,
    paired_bootstrap,
    tokenize_lines,
)

__all__ = [
    "PairedBootstrap",
    "TranslationMetric",
    "TranslationScores",
    "cosines",
    "decide",
    "evaluate_translations",
    "nearest",
    "paired_bootstrap",
    "perplexity",
    "score",
    "score_answers",
    "score_tags",
    "similarity_metrics",
    "tokenize_lines",
    "triplet_accuracy",
    "unit_vectors",
]
