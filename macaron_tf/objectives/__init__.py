"""Objectives: what is hidden, what is asked, and the loss of the answer."""

from macaron_tf.objectives.base import PretrainingObjective, label_smoothed_cross_entropy
from macaron_tf.objectives.bidirectional_language import BidirectionalLanguageObjective
from macaron_tf.objectives.causal_language import (
    AuxiliaryLanguageObjective,
    CausalLanguageObjective,
    SegmentLanguageObjective,
)
from macaron_tf.objectives.corruption import (
    CorruptionObjective,
    SpanCorruptionConfig,
    SpanCorruptionObjective,
)
from macaron_tf.objectives.denoising import DenoisingConfig, DenoisingObjective
from macaron_tf.objectives.masked_language import MaskedLanguageObjective, SpanBoundaryObjective
from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.masking.masking import mask_tokens, masked_dataset
from macaron_tf.objectives.permutation import PermutationObjective
from macaron_tf.objectives.replaced_tokens import ReplacedTokenObjective
from macaron_tf.objectives.sequences import SequenceObjective
from macaron_tf.objectives.similarity import (
    CosineObjective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.objectives.tasks import ClassificationObjective, SpanObjective, TaggingObjective
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
