"""Weights from other libraries' models.

`hugging_face_encoders` reads Hugging Face directories of the BERT, RoBERTa, XLM-R, ALBERT, ELECTRA
and XLM families, `hugging_face_language_models` those of GPT and GPT-2,
`hugging_face_xlnet` those of XLNet, all with their vocabularies; `t5` and `marian` those of T5,
BART and MarianMT, `hugging_face_text_models` T5 and BART with their tokenizers,
`sentence_transformers` those of that library; `keras_hub_bert` reads BERT presets and backbones of
KerasHub, `model_garden_bert` encoders and checkpoints of TensorFlow's Model Garden; `keras_hub`
copies KerasHub layers.
"""

from macaron_tf.interop.encoder_import import EncoderImport
from macaron_tf.interop.hugging_face_encoders import read_hugging_face
from macaron_tf.interop.hugging_face_language_models import (
    LanguageModelImport,
    read_hugging_face_language_model,
)
from macaron_tf.interop.hugging_face_text_models import (
    TextModelImport,
    read_hugging_face_text_model,
)
from macaron_tf.interop.hugging_face_xlnet import XLNetImport, read_xlnet
from macaron_tf.interop.keras_hub import copy_keras_hub
from macaron_tf.interop.keras_hub_bert import copy_keras_hub_bert, read_keras_hub_bert
from macaron_tf.interop.marian import read_bart, read_marian, read_marian_state
from macaron_tf.interop.model_garden_bert import copy_model_garden_bert, read_model_garden_bert
from macaron_tf.interop.sentence_transformers import (
    SentenceTransformerImport,
    read_sentence_transformer,
)
from macaron_tf.interop.sequence_import import SequenceImport
from macaron_tf.interop.t5 import read_t5, read_t5_state

__all__ = [
    "EncoderImport",
    "LanguageModelImport",
    "SentenceTransformerImport",
    "SequenceImport",
    "TextModelImport",
    "XLNetImport",
    "copy_keras_hub",
    "copy_keras_hub_bert",
    "copy_model_garden_bert",
    "read_bart",
    "read_hugging_face",
    "read_hugging_face_language_model",
    "read_hugging_face_text_model",
    "read_keras_hub_bert",
    "read_marian",
    "read_marian_state",
    "read_model_garden_bert",
    "read_sentence_transformer",
    "read_t5",
    "read_t5_state",
    "read_xlnet",
]
