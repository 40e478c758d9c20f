"""RoBERTa and XLM-R, whose positions begin after the id of the padding."""

import dataclasses

from macaron_tf.hub.encoders import head_table
from macaron_tf.hub.families.bert import BERT
from macaron_tf.hub.heads import text_heads
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
        **text_heads(
            {"pooler/dense": "classifier.dense", "head/dense": "classifier.out_proj"},
            (EncoderClassifier,),
        ),
    },
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    head_options={"activation": "gelu"},
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
