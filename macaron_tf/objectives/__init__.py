"""Training objectives: token masking, prediction targets and losses."""

from macaron_tf.objectives.base import MaskedObjective, Objective, PretrainingObjective
from macaron_tf.objectives.causal_language import (
    AuxiliaryLanguageObjective,
    BidirectionalLanguageObjective,
    CausalLanguageObjective,
    PrefixLanguageObjective,
    SegmentLanguageObjective,
)
from macaron_tf.objectives.corruption import CorruptionObjective, SpanCorruptionObjective
from macaron_tf.objectives.denoising import DenoisingConfig, DenoisingObjective
from macaron_tf.objectives.masked_language import MaskedLanguageObjective, SpanBoundaryObjective
from macaron_tf.objectives.masking.masking import MaskingConfig, mask_tokens
from macaron_tf.objectives.permutation import PermutationObjective
from macaron_tf.objectives.replaced_tokens import ReplacedTokenObjective
from macaron_tf.objectives.tasks import (
    ClassificationObjective,
    CosineObjective,
    MultiLabelObjective,
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

# Maps each name of a pre-training objective in recipes and in model.json to the class.
PRETRAINING: dict[str, type[PretrainingObjective]] = {
    cls.name: cls
    for cls in (
        MaskedLanguageObjective,
        SpanBoundaryObjective,
        ReplacedTokenObjective,
        CausalLanguageObjective,
        PrefixLanguageObjective,
        SegmentLanguageObjective,
        PermutationObjective,
        SpanCorruptionObjective,
        DenoisingObjective,
    )
}


def objective_class(name: str | None) -> type[Objective]:
    """Returns the class of the pre-training objective with a name, or the base class."""
    return PRETRAINING.get(name or "", Objective)
