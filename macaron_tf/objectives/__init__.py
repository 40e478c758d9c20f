"""Objectives: what is hidden, what is asked, and the loss of the answer."""

from macaron_tf.objectives.classification import ClassificationObjective
from macaron_tf.objectives.cross_entropy import label_smoothed_cross_entropy
from macaron_tf.objectives.masked_language import MaskedLanguageObjective
from macaron_tf.objectives.masking import (
    MaskingConfig,
    MaskingVocabulary,
    mask_tokens,
    masked_dataset,
)
from macaron_tf.objectives.translation import TranslationObjective, shift_right

__all__ = [
    "ClassificationObjective",
    "MaskedLanguageObjective",
    "MaskingConfig",
    "MaskingVocabulary",
    "TranslationObjective",
    "label_smoothed_cross_entropy",
    "mask_tokens",
    "masked_dataset",
    "shift_right",
]
