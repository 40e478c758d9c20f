"""Objectives: what is hidden, what is asked, and the loss of the answer."""

from macaron_tf.objectives.cross_entropy import label_smoothed_cross_entropy
from macaron_tf.objectives.translation import TranslationObjective, shift_right

__all__ = ["TranslationObjective", "label_smoothed_cross_entropy", "shift_right"]
