"""RoBERTa and XLM-R: BERT without segments, with positions after the padding's id."""

import dataclasses

from macaron_tf.hub.encoders import head_table
from macaron_tf.hub.families.bert import BERT
from macaron_tf.hub.family import TaskHead
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

ROBERTA = dataclasses.replace(
    BERT,
    model_type="roberta",
    name="RoBERTa",
    class_prefix="Roberta",
    vocabulary_class=BytePairVocabulary,
    prefix="roberta.",
    heads=head_table("lm_head.", "layer_norm"),
    tasks={
        **BERT.tasks,
        EncoderClassifier: TaskHead(
            "ForSequenceClassification",
            "text-classification",
            {"pooler/dense": "classifier.dense", "head/dense": "classifier.out_proj"},
        ),
    },
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    head_options={"activation": "gelu"},
    output_kernel="lm_head.decoder.weight",
    padding_id=1,
    checks_padding=True,
    positions_from_padding=True,
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    model_type="xlm-roberta",
    name="XLM-R",
    class_prefix="XLMRoberta",
    vocabulary_class=SentencePieceVocabulary,
)
