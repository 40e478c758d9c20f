"""Evaluation: what a set of outputs is worth."""

from macaron_tf.evaluation.bleu import (
    TranslationMetric,
    TranslationScores,
    evaluate_translations,
    tokenize_lines,
)
from macaron_tf.evaluation.bootstrap import PairedBootstrap, paired_bootstrap
from macaron_tf.evaluation.glue import decide, score
from macaron_tf.evaluation.perplexity import perplexity
from macaron_tf.evaluation.similarity import (
    cosines,
    nearest,
    similarity_metrics,
    triplet_accuracy,
    unit_vectors,
)
from macaron_tf.evaluation.spans import score_answers
from macaron_tf.evaluation.tagging import score_tags

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
