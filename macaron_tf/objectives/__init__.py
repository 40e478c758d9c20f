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

# Pre-training objectives by their names in recipes and in model.json.
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
    """The class of the objective that a model was pre-trained on, see `Pretrained.objective`.

    Returns `Objective` for None and for unknown names: such a model neither continues text nor
    fills in masks.
    """
    return PRETRAINING.get(objective, Objective)
