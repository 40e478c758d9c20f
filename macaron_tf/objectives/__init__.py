"""Objectives: what is hidden, what is asked, and the loss of the answer."""

from macaron_tf.objectives.auxiliary_language import AuxiliaryLanguageObjective
from macaron_tf.objectives.bidirectional_language import BidirectionalLanguageObjective
from macaron_tf.objectives.causal_language import CausalLanguageObjective
from macaron_tf.objectives.classification import ClassificationObjective
from macaron_tf.objectives.corruption import CorruptionObjective
from macaron_tf.objectives.cross_entropy import label_smoothed_cross_entropy
from macaron_tf.objectives.denoising import DenoisingConfig, DenoisingObjective
from macaron_tf.objectives.masked_language import MaskedLanguageObjective
from macaron_tf.objectives.masking import mask_tokens, masked_dataset
from macaron_tf.objectives.masking_config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.permutation import PermutationObjective
from macaron_tf.objectives.pretraining import PretrainingObjective
from macaron_tf.objectives.replaced_tokens import ReplacedTokenObjective
from macaron_tf.objectives.segment_language import SegmentLanguageObjective
from macaron_tf.objectives.sequences import SequenceObjective
from macaron_tf.objectives.similarity import (
    CosineObjective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.objectives.span_boundary import SpanBoundaryObjective
from macaron_tf.objectives.span_corruption import SpanCorruptionConfig, SpanCorruptionObjective
from macaron_tf.objectives.spans import SpanObjective
from macaron_tf.objectives.tagging import TaggingObjective
from macaron_tf.objectives.translation import TranslationObjective, shift_right

__all__ = [
    "AuxiliaryLanguageObjective",
    "BidirectionalLanguageObjective",
    "CausalLanguageObjective",
    "ClassificationObjective",
    "CorruptionObjective",
    "CosineObjective",
    "DenoisingConfig",
    "DenoisingObjective",
    "MaskedLanguageObjective",
    "MaskingConfig",
    "MaskingVocabulary",
    "PairClassificationObjective",
    "PermutationObjective",
    "PretrainingObjective",
    "ReplacedTokenObjective",
    "SegmentLanguageObjective",
    "SequenceObjective",
    "SpanBoundaryObjective",
    "SpanCorruptionConfig",
    "SpanCorruptionObjective",
    "SpanObjective",
    "TaggingObjective",
    "TranslationObjective",
    "TripletObjective",
    "label_smoothed_cross_entropy",
    "mask_tokens",
    "masked_dataset",
    "shift_right",
]
