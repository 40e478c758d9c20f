"""Encoders with any block of macaron_tf, for `remote/modeling_macaron.py`."""

from typing import Any

from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.family import TaskHead
from macaron_tf.hub.own_layers import OWN_TABLE, own_code, own_fields, own_settings
from macaron_tf.models.tasks import (
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)

_POOLED: dict[str, Any] = {
    "table": {
        **{"pooler/dense": "pooler.dense", "pooler/norm": "pooler.norm"},
        "head/dense": "head.dense",
    },
    "activation_field": "pooler_activation",
}
MACARON = EncoderFamily(
    model_type="macaron",
    name="Macaron",
    class_prefix="Macaron",
    prefix="macaron.",
    body_prefixes=("embeddings.", "projection.", "stack."),
    tokens=("embeddings.tokens.weight",),
    table=OWN_TABLE,
    heads={
        "masked_language/dense": "masked_language.dense",
        "masked_language/norm": "masked_language.norm",
    },
    tasks={
        EncoderClassifier: TaskHead("ForSequenceClassification", "text-classification", **_POOLED),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", **_POOLED),
        EncoderTagger: TaskHead(
            "ForTokenClassification", "token-classification", {"head/dense": "head.dense"}
        ),
        EncoderSpanReader: TaskHead(
            "ForQuestionAnswering", "question-answering", {"head/dense": "head.dense"}
        ),
    },
    code=own_code,
    bias=("masked_language.bias",),
    positions="embeddings.positions.weight",
    derive_settings=own_settings,
    derive_fields=own_fields,
)
