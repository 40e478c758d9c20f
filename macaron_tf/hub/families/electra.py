"""ELECTRA, a generator or a discriminator with narrow embeddings."""

import dataclasses

from macaron_tf.hub.config import usual_sizes
from macaron_tf.hub.encoders import head_table
from macaron_tf.hub.families.bert import BERT, LINEAR, WITHOUT_POOLER
from macaron_tf.hub.families.roberta import ROBERTA
from macaron_tf.hub.heads import text_heads
from macaron_tf.models.tasks import EncoderClassifier, EncoderMultipleChoice

ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    name="ELECTRA",
    class_prefix="Electra",
    prefix="electra.",
    body_prefixes=("embeddings", "encoder."),
    table=WITHOUT_POOLER,
    heads={
        **head_table("generator_predictions."),
        "replaced_token/dense": "discriminator_predictions.dense",
        "replaced_token/answer": "discriminator_predictions.dense_prediction",
    },
    tasks={
        **BERT.tasks,
        EncoderClassifier: dataclasses.replace(ROBERTA.tasks[EncoderClassifier], activation="gelu"),
        **text_heads(
            {"pooler/dense": "sequence_summary.summary", **LINEAR},
            (EncoderMultipleChoice,),
            activation="gelu",
            activation_field="summary_activation",
        ),
    },
    bias=("generator_lm_head.bias",),
    head_options={"activation": "gelu"},
    settings={
        **BERT.settings,
        **usual_sizes(256, 1024, 4, 12, 512),
        "embedding_dim": ("embedding_size", 128),
    },
    required_fields={
        **BERT.required_fields,
        **{"summary_type": "first", "summary_use_proj": True},  # of `ElectraForMultipleChoice`
    },
)
