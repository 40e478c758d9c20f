"""Encoders and language models with any block of macaron_tf, for `remote/modeling_macaron.py`."""

import pathlib
from typing import Any

from macaron_tf.hub.arrays import Raw
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.family import TaskHead
from macaron_tf.hub.language_models import LanguageFamily
from macaron_tf.hub.own_layers import OWN_TABLE, own_code, own_fields, own_settings
from macaron_tf.models.tasks import (
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)
from macaron_tf.pretrained import Pretrained

_NAMES: dict[str, Any] = {
    "model_type": "macaron",
    "name": "Macaron",
    "class_prefix": "Macaron",
    "prefix": "macaron.",
    "body_prefixes": ("embeddings.", "projection.", "stack."),
    "tokens": ("embeddings.tokens.weight",),
    "code": own_code,
    "derive_settings": own_settings,
    "derive_fields": own_fields,
}
MACARON_LANGUAGE = LanguageFamily(
    **_NAMES,
    catalog="gpt2_base",
    last_norm="",
    language_class="ForCausalLM",
    tokenizer="optional",
    table={**OWN_TABLE, "embeddings/positions/table": Raw("embeddings.positions.weight")},
    output_kernel="language_head.output_table.weight",
    bias="language_head.bias",
    fixed_settings={"output_bias": True},
)


class _MacaronFamily(EncoderFamily):
    """Rules for all networks with blocks of macaron_tf, which have the same `model_type`."""

    def read(
        self,
        directory: pathlib.Path,
        config: ForeignConfig,
        lower_case: bool | None = None,
        has_task: bool = True,
    ) -> Pretrained:
        if config.architecture == self.class_prefix + MACARON_LANGUAGE.language_class:
            return MACARON_LANGUAGE.read(directory, config, lower_case, has_task)
        return super().read(directory, config, lower_case, has_task)


_POOLED: dict[str, Any] = {
    "table": {
        **{"pooler/dense": "pooler.dense", "pooler/norm": "pooler.norm"},
        "head/dense": "head.dense",
    },
    "activation_field": "pooler_activation",
}
MACARON = _MacaronFamily(
    **_NAMES,
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
    bias=("masked_language.bias",),
    positions="embeddings.positions.weight",
)
