"""Weights from other libraries' models.

`marian` reads Hugging Face MarianMT directories; `keras_hub` copies KerasHub layers.
"""

from macaron_tf.interop.keras_hub import copy_keras_hub
from macaron_tf.interop.marian import MarianImport, read_marian, read_marian_state

__all__ = ["MarianImport", "copy_keras_hub", "read_marian", "read_marian_state"]
