"""ELECTRA, generator or discriminator: BERT with another head and narrow embeddings."""

import dataclasses

from macaron_tf.hub.encoders import head_table
from macaron_tf.hub.families.bert import BERT, LAYERS
from macaron_tf.hub.families.roberta import ROBERTA
from macaron_tf.hub.family import TaskHead
from macaron_tf.models.tasks import EncoderClassifier, EncoderMultipleChoice

ELECTRA = dataclasses.replace(
    BERT,
    model_type="electra",
    name="ELECTRA",
    class_prefix="Electra",
    prefix="electra.",
    body_prefixes=("embeddings", "encoder."),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/projection": "embeddings_project",
        **LAYERS,
    },
    heads={
        **head_table("generator_predictions."),
        "replaced_token/dense": "discriminator_predictions.dense",
        "replaced_token/answer": "discriminator_predictions.dense_prediction",
    },
    tasks={
        **BERT.tasks,
        EncoderClassifier: dataclasses.replace(ROBERTA.tasks[EncoderClassifier], activation="gelu"),
        EncoderMultipleChoice: TaskHead(
            "ForMultipleChoice",
            "multiple-choice",
            {"pooler/dense": "sequence_summary.summary", "head/dense": "classifier"},
            activation="gelu",
            activation_field="summary_activation",
        ),
    },
    bias=("generator_lm_head.bias",),
    head_options={"activation": "gelu"},
    output_kernel="generator_lm_head.weight",
    settings={
        **BERT.settings,
        "hidden_dim": ("hidden_size", 256),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 1024),
        "num_heads": ("num_attention_heads", 4),
    },
    required_fields={
        **BERT.required_fields,
        **{"summary_type": "first", "summary_use_proj": True},  # of `ElectraForMultipleChoice`
    },
)
