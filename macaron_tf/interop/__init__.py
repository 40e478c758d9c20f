"""Weights from other libraries' models.

`hugging_face_bert` reads BERT directories of Hugging Face and sentence-transformers,
`keras_hub_bert` BERT presets and backbones of KerasHub, `model_garden_bert` encoders and
checkpoints of TensorFlow's Model Garden; `marian` reads Hugging Face MarianMT directories;
`keras_hub` copies KerasHub layers.
"""

from macaron_tf.interop.bert_import import BertImport
from macaron_tf.interop.hugging_face_bert import read_bert
from macaron_tf.interop.keras_hub import copy_keras_hub
from macaron_tf.interop.keras_hub_bert import copy_keras_hub_bert, read_keras_hub_bert
from macaron_tf.interop.marian import MarianImport, read_marian, read_marian_state
from macaron_tf.interop.model_garden_bert import copy_model_garden_bert, read_model_garden_bert

__all__ = [
    "BertImport",
    "MarianImport",
    "copy_keras_hub",
    "copy_keras_hub_bert",
    "copy_model_garden_bert",
    "read_bert",
    "read_keras_hub_bert",
    "read_marian",
    "read_marian_state",
    "read_model_garden_bert",
]
