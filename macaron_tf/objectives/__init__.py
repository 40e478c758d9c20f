"""Objectives: masking, targets and losses."""

from macaron_tf.objectives.base import Objective, PretrainingObjective
from macaron_tf.objectives.causal_language import (
    AuxiliaryLanguageObjective,
    BidirectionalLanguageObjective,
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
from macaron_tf.objectives.masking.masking import MaskingConfig, mask_tokens
from macaron_tf.objectives.permutation import PermutationObjective
from macaron_tf.objectives.replaced_tokens import ReplacedTokenObjective
from macaron_tf.objectives.tasks import (
    ClassificationObjective,
    CosineObjective,
    PairClassificationObjective,
    SequenceObjective,
    SpanObjective,
    TaggingObjective,
    TripletObjective,
)
from macaron_tf.objectives.translation import (
    TranslationObjective,
    label_smoothed_cross_entropy,
    shift_right,
)

# The objectives of pre-training, by the names that recipes and model.json have for them.
PRETRAINING: dict[str, type[PretrainingObjective]] = {
    kind.learns: kind
    for kind in (
        MaskedLanguageObjective,
        SpanBoundaryObjective,
        ReplacedTokenObjective,
        CausalLanguageObjective,
        SegmentLanguageObjective,
        PermutationObjective,
        SpanCorruptionObjective,
        DenoisingObjective,
    )
}


def learnt(objective: str | None) -> type[Objective]:
    """The class of an objective that a model has learnt, see `Pretrained.objective`.

    Of another name, and of None, `Objective`, with which a model learns to do nothing of its own.
    """
    return PRETRAINING.get(objective, Objective)
