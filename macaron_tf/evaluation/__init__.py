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

__all__ = [
    "PairedBootstrap",
    "TranslationMetric",
    "TranslationScores",
    "decide",
    "evaluate_translations",
    "paired_bootstrap",
    "perplexity",
    "score",
    "tokenize_lines",
]
